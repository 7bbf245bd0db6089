"""Writes what torch has collected itself, and looks whether libkineto wrote all of it.

torch holds the GIL for as long as it writes a trace: seconds, in which no Python runs. The function
that writes is exported, and needs no Python; what it needs is the address of the results, which
pybind11 keeps as the first member of the object that Python has.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from dynprof.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.backends.detached_close import DetachedClose

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_BASICSIZE = object.__basicsize__ + 5 * _POINTER
"""Of an object of pybind11's: the address, a holder of two, weak references, flags."""
_LONGEST_TAIL = 1 << 13
"""Of a trace: its last member is its own path."""


def writer_of(profiler: Any, functions: DetachedClose) -> Callable[[Path], None]:
    """Return what writes the results of a ``torch.autograd.profiler.profile``, once.

    It needs no GIL, and nobody may have written them before: C++ would raise through ctypes, which
    ends the process.

    Raises:
        BackendError: This build of torch keeps them in another way.
    """
    results = getattr(profiler, "kineto_results", None)
    if getattr(type(results), "__basicsize__", 0) != _BASICSIZE:
        raise BackendError("torch keeps its results in a way that is not known here")
    address = ctypes.c_void_p.from_address(id(results) + object.__basicsize__).value

    def write(path: Path, _kept: object = results) -> None:
        functions.write_at(address, path)

    return write


def check_written(path: Path) -> None:
    """Raise unless libkineto wrote a whole trace.

    Raises:
        BackendError: It did not; it only prints that, or does not look whether its last writing
            succeeds.
    """
    if not path.exists():  # it leaves what it wrote under another name
        raise BackendError("libkineto could not write the trace")
    if not _is_whole(path):
        raise BackendError("libkineto could not write the whole trace")


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST_TAIL))
        tail = file.read()
    return b'"traceName"' in tail and tail.rstrip().endswith(b"}")
