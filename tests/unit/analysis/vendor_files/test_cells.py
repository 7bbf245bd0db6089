"""Cells of csv files: quoted, and safe for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.one_trace import write_analysis
from dynprof.analysis.vendor_files.tables import cell

if TYPE_CHECKING:
    from pathlib import Path

FORMULA = "=cmd|' /C calc'!A0"


SIGNS = [FORMULA, "+A1", "-A1,2", "@SUM(A1)", "\tx", "\rx", "-1+1"]
SPACED = ["\n=1+1", " =1+1", " \r\n @A1", "\u00a0-A1", "\u2028=A1", "\x0b+A1"]
WIDE = ["\uff1d1+1", "\uff0bA1", "\uff0dA1", " \uff20SUM(A1)"]


@pytest.mark.parametrize("text", [*SIGNS, *SPACED, *WIDE])
def test_formulas_begin_with_an_apostrophe(text: str) -> None:
    """The rest of the text does not matter."""
    assert next(csv.reader(io.StringIO(cell(text), newline=""))) == [f"'{text}"]


@pytest.mark.parametrize("value", [-1, "-12.500", "-1e-05", "+3", 1.5, "aten::mm", "a=b", "", " a"])
def test_numbers_and_names_stay_as_they_are(value: object) -> None:
    """Negative numbers stay, too."""
    assert cell(value) == str(value)


def test_no_table_has_a_formula_from_a_name(tmp_path: Path) -> None:
    """This covers operators, kernels, shapes and call stacks; events.parquet has plain names."""
    common = {"ph": "X", "pid": 1, "tid": 1, "dur": 5, "args": {"Input Dims": FORMULA}}
    events = [
        {**common, "cat": category, "name": FORMULA, "ts": ts}
        for ts, category in enumerate(("cpu_op", "python_function", "cuda_runtime", "kernel"))
    ]
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    tables = [
        made for made in write_analysis(MeasuredTrace(path), ["text"]) if made.suffix == ".csv"
    ]
    assert {"operator_details.csv", "kernel_details.csv"} <= {table.name for table in tables}
    for table in tables:
        with table.open(newline="") as file:
            cells = [one for row in csv.reader(file) for one in row]
        assert not [one for one in cells if one.startswith("=")], table
    assert any(f"'{FORMULA}" in table.read_text() for table in tables)
