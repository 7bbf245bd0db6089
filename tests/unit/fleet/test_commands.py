"""Commands that other programs run, and the line in the log that says who asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dynprof.fleet import commands
from dynprof.fleet.commands import note_in_log, run_command

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_output_messages_and_exit_code_are_those_of_the_command(tmp_path: Path) -> None:
    """A directory without a job, and a config with an error."""
    answer = run_command(["status", str(tmp_path)], timeout_s=60)
    assert (answer.code, answer.output.split()[0]) == (3, "rank")
    assert answer.messages.startswith(f"no process watches {tmp_path}")
    (tmp_path / "profiler_config.json").write_text('{"activ": 1}')
    answer = run_command(["validate", str(tmp_path)], timeout_s=60)
    assert answer.code == 1
    assert "/activ" in answer.output + answer.messages


def test_long_output_is_cut_and_a_slow_command_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says so in both cases."""
    monkeypatch.setattr(commands, "MAX_OUTPUT_BYTES", 100)
    answer = run_command(["--help"], timeout_s=60)
    assert (answer.code, len(answer.output.encode()), answer.is_cut) == (0, 100, True)
    note_in_log(tmp_path, "page", "begun")
    answer = run_command(["log", str(tmp_path), "--follow"], timeout_s=0.2)
    assert answer.code is None


def test_log_of_a_job_has_the_line_of_another_program(tmp_path: Path) -> None:
    """``dynprof log`` prints it; a name from outside adds no line of its own."""
    note_in_log(tmp_path, "mcp", "arm --active 3, asked by one\x1b[2K\n2026 ERROR  rank 0  forged")
    (said,) = run_command(["log", str(tmp_path)], timeout_s=60).output.splitlines()
    assert re.fullmatch(r"[-\d]+ [:.\d]+ INFO    mcp  arm --active 3, asked by one.+forged", said)
