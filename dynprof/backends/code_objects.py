"""Keeps Python's code where it is while torch points into it.

With ``with_stack`` torch notes of each function that is called where the name of its file and its
own stand, and reads them when it collects. Code that has died by then, as that of ``eval``,
``exec`` and of every module imported meanwhile does, leaves names that are somebody else's, or a
crash; torch alone has the flaw as well. So no code object is let go of meanwhile. What should have
died then is never freed, some hundred bytes for each: C has no list of it, and Python may not run
at that moment.
"""

from __future__ import annotations

import ctypes
import threading
from types import CodeType

from dynprof.errors import BackendError

_WORD = ctypes.sizeof(ctypes.c_void_p)
_BASIC_SIZE, _ITEM_SIZE, _DEALLOC = (place * _WORD for place in (4, 5, 6))
"""Where a type has these, after its count, type, size and name."""


class _Keepers:
    """All who want code to stay; the first of them stops its being freed, the last lets it on."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a keeper may be let go of in the midst of anything
        self._all: set[int] = set()
        self._slot = ctypes.c_void_p.from_address(id(CodeType) + _DEALLOC)
        self._free: int | None = None

    def add(self, keeper: int) -> None:
        with self._lock:
            self._all.add(keeper)
            if self._free is None:
                _insist_on_layout()
                self._free = self._slot.value
            self._slot.value = _does_nothing()

    def remove(self, keeper: int) -> None:
        with self._lock:
            self._all.discard(keeper)
            if not self._all and self._free is not None:
                self._slot.value = self._free

    def forget(self) -> None:
        """Keep nothing in a forked child: its parent's recording is none of its own."""
        self._lock = threading.RLock()
        self._all.clear()
        self.remove(0)


CODE = _Keepers()
"""The process has one."""


class KeptCode:
    """Whoever holds this has all code objects stay where they are, for as long as it lives.

    Raises:
        BackendError: This Python is built in a way that is not known.
    """

    def __init__(self) -> None:
        CODE.add(id(self))

    def __del__(self) -> None:
        CODE.remove(id(self))


def _does_nothing() -> int | None:
    """Return the address of a function of Python's that only looks, whatever it is given."""
    return ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value


def _insist_on_layout() -> None:
    """Raise where a type does not look as it does on CPython 3.10 to 3.14."""
    sizes = [
        ctypes.c_ssize_t.from_address(id(CodeType) + at).value for at in (_BASIC_SIZE, _ITEM_SIZE)
    ]
    if sizes != [CodeType.__basicsize__, CodeType.__itemsize__]:
        raise BackendError("with_stack cannot be recorded: this Python's types are laid out unlike")
