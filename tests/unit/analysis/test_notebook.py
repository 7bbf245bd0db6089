"""The notebook in ``examples/``, executed cell by cell as a kernel would."""

from __future__ import annotations

import ast
import json
import sys
from typing import TYPE_CHECKING, Any

from tests import rank_traces
from tests.processes import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every cell runs, with or without pandas, and shows the slowest operator of the captures."""
    (tmp_path / "prof_config").mkdir()
    rank_traces.write(tmp_path / "prof_config", 0)
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples/notebook.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        code = ast.parse("".join(cell["source"]))
        shown = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, "cell", "exec"), names)  # noqa: S102 - a cell of our own
        if isinstance(shown, ast.Expr):
            print(eval(compile(ast.Expression(shown.value), "cell", "eval"), names))  # noqa: S307
    printed = capsys.readouterr().out
    length = sum(e["dur"] for e in rank_traces.events(0, 0, 0, 0) if e["name"] == "gloo:all_reduce")
    assert f"{length / 1000:.3f} ms {rank_traces.STEPS:6} x gloo:all_reduce" in printed
    assert printed.count("prof_config") == 1


def test_the_import_of_the_analysis_loads_no_database() -> None:
    """DuckDB and numpy are loaded by the first call, not by the import."""
    code = "import sys, dynprof.analysis; print({'duckdb', 'numpy'} & {*sys.modules})"
    assert run([sys.executable, "-c", code]).stdout.strip() == "set()"
