"""Commands on terminals that lack some characters, and in the C locale."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import start
from tests.rank_traces import events

if TYPE_CHECKING:
    from pathlib import Path

NAME = "前向::größe"
ENVIRONMENTS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
    "utf-8": {"LC_ALL": "C"},
}
"""The environment of commands by the encoding of their output."""
END = "\f"
IN_ORDER = """
import json, sys
from dynprof.cli.app import app
for number, command in enumerate(json.loads(sys.argv[1])):
    print(end="\f" * (number > 0), flush=True)  # paths are written as bytes
    try:
        app(command)
    except SystemExit as end:
        assert not end.code, command
"""
"""Commands one after another: one interpreter loads their modules once."""


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
def test_names_that_the_terminal_lacks_are_printed_with_replacements(
    captures: Path, encoding: str
) -> None:
    """Each command succeeds; all other characters are printed as they are."""
    path = str(captures)
    commands = [
        ["top", path],
        ["query", path, "SELECT name FROM operators"],
        ["diff", path, path],
        ["analyse", path],
        ["report", path],
        ["merge", path],  # last: the others would read its file
    ]
    command_line = [sys.executable, "-c", IN_ORDER, json.dumps(commands)]
    environment = {**os.environ, **ENVIRONMENTS[encoding]}
    with start(command_line, env=environment, encoding=encoding, errors="replace") as process:
        output, errors = process.communicate()
    assert (process.returncode, "Traceback" in errors) == (0, False), errors
    expected = {"report": "/report.html", "merge": "/merged.json.gz", "top": NAME, "query": NAME}
    printed = output.split(END)
    for (command, *_), text in zip(commands, printed, strict=True):
        shown = expected.get(command, "")
        assert shown.encode(encoding, "replace").decode(encoding) in text, command
