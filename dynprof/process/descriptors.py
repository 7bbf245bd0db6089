"""The descriptors that this process has open, and what they are, where the system tells."""

from __future__ import annotations

import contextlib
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def descriptors_of(kind: str) -> dict[int, str]:
    """Return those whose link begins so, each with it; none where the system does not tell."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        numbers = (int(path.name) for path in DESCRIPTORS.iterdir())
        found = {number: link for number in numbers if (link := link_of(number)).startswith(kind)}
    return found


def link_of(descriptor: int) -> str:
    """Return what tells the open file of one from others; empty where it is closed."""
    with contextlib.suppress(OSError):
        return str((DESCRIPTORS / str(descriptor)).readlink())
    return ""
