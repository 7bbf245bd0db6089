"""The output of commands fits the screen, and names stay whole."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len
from rich.console import Console

from dynprof.cli.status import MAX_COMMAND_CELLS, _with_short_commands, short_command
from dynprof.cli.terminal_tables import (
    UNLIMITED,
    Column,
    console,
    shortened,
    table,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (Column("name", 0, min_width=10, left=True), Column("count", 2), Column("self ms", 1))
ROWS = [["aten::mm", "1,092", "40.99"], ["void cutlass::Kernel<float, float>(int)", "3", "7.00"]]


def shown(width: int, rows: Sequence[Sequence[str]] = ROWS) -> list[str]:
    """Return the lines of a table on a screen of this width."""
    screen = Console(file=io.StringIO(), width=width)
    with screen.capture() as capture:
        screen.print(table(COLUMNS, rows, width))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [18, 25, 40, 69])
def test_no_line_is_wider_than_the_screen_or_broken(width: int) -> None:
    """Each row has one line at any width."""
    lines = shown(width)
    assert len(lines) == 1 + len(ROWS)
    assert max(map(cell_len, lines)) <= width


def test_names_lose_their_middle_before_a_column_goes() -> None:
    """The least important column is dropped when names are at their minimum."""
    assert shown(80)[2] == "void cutlass::Kernel<float, float>(int)      3     7.00"
    assert shown(30)[2] == "void cu…>(int)      3     7.00"
    assert shown(30)[0].split() == ["name", "count", "self", "ms"]
    assert shown(20)[0].split() == ["name", "self", "ms"]


def test_a_text_is_shortened_in_its_middle() -> None:
    """Start and end distinguish names; characters of two cells count as two."""
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghij", 5) == "ab…ij"
    assert shortened("abcdefghij", 1) == "…"
    assert cell_len(shortened("步步步步步步步", 8)) <= 8


def test_a_sentence_is_broken_between_words_only() -> None:
    """A path that is longer than a line gets its own line."""
    screen = Console(file=io.StringIO(), width=20)
    with screen.capture() as capture:
        screen.print(wrapped("last capture: step_1-2_20261121T010124Z/info/rank_0.json", 20))
    assert [line.rstrip() for line in capture.get().splitlines()] == [
        "last capture:",
        "step_1-2_2…nk_0.json",
    ]


def test_control_characters_are_escaped() -> None:
    """A name cannot move the cursor."""
    assert shown(80, [["a\x1b[2J", "1", "2"]])[1].startswith("a\\x1b[2J")


def test_a_pipe_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output to a pipe is complete, unless ``COLUMNS`` is set."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == UNLIMITED
    monkeypatch.setenv("COLUMNS", "44")
    assert console().width == 44


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("/opt/conda/bin/python3.11 -u /data/jobs/long/train.py --lr 3", "-u train.py --lr 3"),
        ("python -m torch.distributed.run a.py", "-m torch.distributed.run a.py"),
        ("torchrun /data/train.py", "torchrun train.py"),
        ("/usr/bin/python", "/usr/bin/python"),
        ("", ""),
        (
            '/usr/bin/python3 -I /env/dynprof/runtime/fresh_interpreter.py {"homes": {"a": "/b"}, '
            '"path": ["/c d"]} dynprof.cli.demo.torch_job /tmp/prof_config',
            "dynprof.cli.demo.torch_job /tmp/prof_config",
        ),
    ],
)
def test_a_narrow_screen_shows_the_difference_between_jobs(command: str, shown: str) -> None:
    """The screen shows the script and its arguments, not their common interpreter."""
    assert short_command(command) == shown


@pytest.mark.parametrize("width", [80, UNLIMITED])
def test_a_long_command_line_does_not_stretch_the_table(width: int) -> None:
    """This holds on a screen and in a pipe; otherwise each line would be as long as the longest."""
    (row,) = _with_short_commands([["71", f"python train.py --data\n{'y' * 5000} --seed 3"]], width)
    assert row[1].replace("python ", "").startswith("train.py --data yyy")
    assert row[1].endswith("yyy --seed 3")
    assert len(row[1]) == MAX_COMMAND_CELLS
