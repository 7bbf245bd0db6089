"""What lies below a folder in which a job may be at work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

UNFINISHED = (".saving", ".recording")
"""How the hidden folders end in which processes put captures together."""


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, at any depth; those of captures that are not whole are none.

    ``Path.rglob`` raises, before Python 3.13, where a folder goes away while it looks.
    """
    for place, folders, names in _walk(folder):
        folders[:] = [name for name in folders if not _is_unfinished(name)]
        yield from (path for name in names if (path := place / name).is_file())


def folders_below(folder: Path) -> Iterator[Path]:
    """Yield the folders in one, at any depth, and it itself."""
    yield from (place for place, _, _ in _walk(folder))


def _walk(folder: Any) -> Iterator[tuple[Path, list[str], list[str]]]:
    if isinstance(folder, Path):
        yield from ((Path(place), folders, names) for place, folders, names in os.walk(folder))
    else:  # behind one of fsspec's file systems
        yield from folder.walk()


def written_s(file: Path) -> float:
    """Return when a file was written, in seconds since the epoch; 0 where it is no more."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") and name.endswith(UNFINISHED)
