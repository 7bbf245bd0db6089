"""Which captures lie where, and what is made from each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.memory import write_memory_timeline
from dynprof.analysis.stacks import folded
from dynprof.analysis.trace import load_trace
from dynprof.errors import CaptureError
from dynprof.layout import make_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = "analysis"
"""Beside a trace; what is made from it lies there."""
_ENDINGS = (".trace.json", ".trace.json.gz")


def traces_in(path: Path) -> list[Path]:
    """Return the traces in a folder, at any depth, or the one that ``path`` is.

    Raises:
        CaptureError: There is none.
    """
    if path.is_file():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.name.endswith(_ENDINGS) and p.is_file())
    if not found:
        raise CaptureError(f"{path} holds no trace: no file there ends with .trace.json[.gz]")
    return found


def analyse_all(path: Path) -> list[Path]:
    """Make what can be made from every trace in a folder; return what was written.

    Raises:
        CaptureError: There is no trace, or one cannot be read.
    """
    return [made for trace in traces_in(path) for made in analyse_trace(trace)]


def analyse_trace(path: Path, only: str | None = None) -> Iterator[Path]:
    """Make what can be made from a trace; yield the files.

    Args:
        path: The trace.
        only: ``memory`` for the memory timeline alone.

    Raises:
        CaptureError: It cannot be read.
    """
    trace = load_trace(path)
    folder = path.parent / FOLDER
    make_dir(folder)
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".trace")
    if only is None:
        stacks = folder / f"{name}.folded"
        with stacks.open("w", encoding="utf-8") as file:
            file.writelines(f"{stack} {us}\n" for stack, us in folded(trace))
        yield stacks
    yield from write_memory_timeline(trace, folder / name)
