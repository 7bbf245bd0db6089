"""Invalid numbers on the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from dynprof.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


def answer(*command: str | Path) -> tuple[int, str]:
    """Run a command here; return its exit code, and its output as one line."""
    env = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    done = CliRunner().invoke(app, list(map(str, command)), env=env)
    return done.exit_code, re.sub(r"[\s│]+", " ", done.output)


@pytest.mark.parametrize(
    ("option", "given", "instead"),
    [
        ("--active", "ten", "--active: {} is not allowed; write a whole number of at least 1."),
        ("--active", "1.5", "--active: {} is not allowed; write a whole number of at least 1."),
        ("--warmup", "", "--warmup: {} is not allowed; write a whole number of at least 0."),
        ("--start-step", "1.5", "--start-step: {} is not allowed; write a whole number of at"),
        ("--start-step", "+50", "--start-step: {} is not allowed; write a whole number of at"),
        ("--max-seconds", "x", "--max-seconds: {} is not allowed; write a number greater"),
        ("--patience-s", "1,5", "--patience-s: {} is not allowed; write a number greater"),
    ],
)
def test_a_setting_that_is_not_a_number_gets_a_correct_value(
    tmp_path: Path, option: str, given: str, instead: str
) -> None:
    """The error has the option and a correct value, and the file stays unchanged."""
    answer("init", tmp_path)
    config = (tmp_path / "profiler_config.json").read_text()
    code, said = answer("arm", tmp_path, option, given)
    assert (code, instead.format(f'"{given}"') in said) == (1, True), said
    assert (tmp_path / "profiler_config.json").read_text() == config


@pytest.mark.parametrize(
    ("command", "option", "given", "instead"),
    [
        ("arm", "--timeout", "x", "a number of at least 0."),
        ("arm", "--timeout", "nan", "a number of at least 0."),
        ("arm", "--timeout", "-3", "a number of at least 0."),
        ("log", "-n", "0", "a whole number of at least 1."),
        ("top", "--limit", "2.5", "a whole number of at least 1."),
        ("diff", "--limit", "all", "a whole number of at least 1."),
        ("analyse", "--processes", "x", "a whole number of at least 1."),
        ("attach", "--timeout", "0", "a number of at least 0.1."),
        ("view", "--port", "70000", "a whole number of at least 0 and of at most 65535."),
    ],
)
def test_an_option_that_is_not_a_number_gets_a_correct_value(
    command: str, option: str, given: str, instead: str
) -> None:
    """The error has the same words, and the name of the option."""
    code, said = answer(command, option, given)
    assert code == 2
    assert f"'{option}': \"{given}\" is not allowed; write {instead}" in said.replace(
        "--lines' / '", ""
    )


def test_numbers_are_written_as_numbers(tmp_path: Path) -> None:
    """Whole numbers have no point."""
    answer("init", tmp_path)
    given = ("--active", "3", "--start-step", "-1", "--max-seconds", "2.50", "--patience-s", "1e1")
    assert answer("arm", tmp_path, *given)[0] == 3  # no process watches the directory
    text = (tmp_path / "profiler_config.json").read_text()
    for written in '"active": 3,', '"start_step": -1,', '"max_seconds": 2.5,', '"patience_s": 10\n':
        assert written in text
