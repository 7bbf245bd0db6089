"""Files that ``dynprof analyse`` does not write, and its messages on them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.integration.commands import dynprof
from tests.rank_traces import write

if TYPE_CHECKING:
    from pathlib import Path


def test_output_names_the_option_for_the_database(tmp_path: Path) -> None:
    """The message names the option for the database; the option overrides the config."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 9}
    trace = tmp_path / "a.trace.json"
    trace.write_text(json.dumps({"traceEvents": [event]}))
    databases = (
        "not written: ascend_pytorch_profiler.db, analysis.db: export_type is text only; "
        "add db for it (1 capture)"
    )
    code, _, errors = dynprof("analyse", trace)
    first, second = errors.splitlines()
    assert (code, first) == (0, databases)
    _, _, named = dynprof("analyse", trace, "--verbose")
    reasons = [line.removeprefix("not written: ") for line in named.splitlines()]
    files = {name for line in reasons for name in line.partition(": ")[0].split(", ")}
    assert "communication.json, collective_bandwidth.csv, communication_matrix.json: no " in named
    assert second == (
        f"not written: {len(files) - 2} files whose content was not recorded; --verbose names them"
    )
    code, output, errors = dynprof("analyse", trace, "--export-type", "db")
    assert (code, "ascend_pytorch_profiler" in errors) == (0, False), errors
    assert "ascend_pytorch_profiler.db\n" in output


def test_a_file_that_is_no_trace_is_named_once(tmp_path: Path) -> None:
    """Its path begins the message of the reader, and is not repeated before it."""
    trace = tmp_path / "a.trace.json"
    trace.write_text("no trace")
    for command in ("analyse", "report"):
        code, _, errors = dynprof(command, trace)
        assert (code, errors.count(str(trace))) == (1 if command == "analyse" else 2, 1), errors


def test_an_output_with_a_slash_is_a_new_folder(tmp_path: Path) -> None:
    """The files in it have their usual names."""
    for rank in range(2):
        write(tmp_path, rank)
    for command, name in (("report", "report.html"), ("merge", "merged.json.gz")):
        code, output, errors = dynprof(command, tmp_path, "--output", f"{tmp_path}/new/{command}/")
        assert (code, output.splitlines()[-1]) == (0, f"{tmp_path}/new/{command}/{name}"), errors


def test_a_wrong_choice_is_answered_with_the_right_ones(tmp_path: Path) -> None:
    """Without the name of an exception of Python."""
    code, _, errors = dynprof("top", tmp_path, "--sort", "foo")
    text = " ".join(errors.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    assert (code, "'--sort': 'foo' is not one of 'self', 'total', 'count'" in text) == (2, True), (
        text
    )
