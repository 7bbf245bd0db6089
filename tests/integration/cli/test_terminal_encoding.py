"""Commands on terminals that lack some characters, and in the C locale."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.processes import DYNPROF, start
from tests.rank_traces import events

if TYPE_CHECKING:
    from pathlib import Path

NAME = "前向::größe"
ENVIRONMENTS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
    "utf-8": {"LC_ALL": "C"},
}
"""The environment of a command by the encoding of its output."""


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """Return a folder with the traces of two ranks; it and they have names in other scripts."""
    folder = tmp_path / "größe 前"
    folder.mkdir()
    for rank in range(2):
        found = events(work_ms=rank, late_ms=0, ahead_ms=0, rank=rank)
        for event in found:
            event["name"] = event["name"].replace("aten::mm", NAME)
        trace = {"baseTimeNanoseconds": 10**18, "traceEvents": found,
                 "distributedInfo": {"rank": rank, "world_size": 2}}  # fmt: skip
        (folder / f"前{rank}.pt.trace.json").write_text(json.dumps(trace, ensure_ascii=False))
    return folder


@pytest.mark.parametrize("encoding", ENVIRONMENTS)
@pytest.mark.parametrize("command", ["report", "top", "analyse", "diff", "merge", "query"])
def test_names_that_the_terminal_lacks_are_printed_with_replacements(
    captures: Path, command: str, encoding: str
) -> None:
    """The command succeeds; all other characters are printed as they are."""
    paths = [captures] * (2 if command == "diff" else 1)
    environment = {**os.environ, **ENVIRONMENTS[encoding]}
    statement = ["SELECT name FROM operators"] * (command == "query")
    command_line = [*DYNPROF, command, *map(str, paths), *statement]
    with start(command_line, env=environment, encoding=encoding, errors="replace") as process:
        output, errors = process.communicate()
    assert (process.returncode, "Traceback" in errors) == (0, False), errors
    expected = {"report": "/report.html", "merge": "/merged.json.gz", "top": NAME, "query": NAME}
    shown = expected.get(command, "")
    assert shown.encode(encoding, "replace").decode(encoding) in output
