"""What libkineto has written, before anything of ours is added to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_TAIL = 1 << 13
"""Of a trace: its last member is its own path."""


def is_whole(path: Path) -> bool:
    """Return whether a trace ends with the last member that libkineto writes."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST_TAIL))
        tail = file.read()
    return b'"traceName"' in tail and tail.rstrip().endswith(b"}")
