"""``dynprof log`` follows a log that is rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.cli.log import _Tail

if TYPE_CHECKING:
    from pathlib import Path


def test_the_rest_of_a_rotated_log_is_read(tmp_path: Path) -> None:
    """A follower misses no line when the log is rotated."""
    path, line = tmp_path / "dp_x.log", "2026-01-31 03:00:00.123 INFO    rank 0  "
    path.write_text(f"{line}one\n")
    tail = _Tail(path)
    assert list(tail.records()) == [f"{line}one"]
    with path.open("a") as file:
        file.write(f"{line}two\n")
    path.rename(f"{path}.1")
    path.write_text(f"{line}three\n")
    assert list(tail.records()) == [f"{line}two", f"{line}three"]
