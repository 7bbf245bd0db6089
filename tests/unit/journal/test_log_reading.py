"""Logs of a job are read while they grow and are rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.journal.log_reading import LogTail

if TYPE_CHECKING:
    from pathlib import Path


def test_the_rest_of_a_rotated_log_is_read(tmp_path: Path) -> None:
    """A follower misses no line when the log is rotated."""
    path, line = tmp_path / "dp_x.log", "2026-01-31 03:00:00.123 INFO    rank 0  "
    path.write_text(f"{line}one\n")
    tail = LogTail(path)
    assert list(tail.records()) == [f"{line}one"]
    with path.open("a") as file:
        file.write(f"{line}two\n")
    path.rename(f"{path}.1")
    path.write_text(f"{line}three\n")
    assert list(tail.records()) == [f"{line}two", f"{line}three"]


def test_the_first_read_may_be_of_the_end_only(tmp_path: Path) -> None:
    """A page shows the newest lines of large logs; what comes later is read whole."""
    path, line = tmp_path / "dp_x.log", "2026-01-31 03:00:00.123 INFO    rank 0  "
    path.write_text("".join(f"{line}{number}\n" for number in range(100)))
    tail = LogTail(path, newest_bytes=2 * len(line))
    assert list(tail.records()) == [f"{line}99"]
    with path.open("a") as file:
        file.write(f"{line}100\n" * 9)
    assert len(list(tail.records())) == 9
