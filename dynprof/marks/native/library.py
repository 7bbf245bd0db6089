"""The library of C marks: where it lies, and what was marked through it."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dynprof.runtime.forked_child import forget_in_child
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    Take = Callable[["NativeMark"], None]

FOLDER = Path(__file__).parent / "lib"
PATH = FOLDER / "libms_tools_ext.so"
HEADERS = Path(__file__).parent / "include"
MISSING = (
    f"there is no {PATH.name}: no C compiler was found when dynprof was installed; install one "
    "(such as gcc) and install dynprof again from its sources"
)
POLL_S = 0.05
"""So often marks are taken from it; in that time 16,384 have room."""
DRAIN_TIMEOUT_S = 30.0
"""How long a window that has ended waits for the last of them."""
_BATCH, _QUEUE_SIZE, _MAX_OPEN = 1024, 16384, 8192


class NativeMark(NamedTuple):
    """A moment, or a range, as C set it; see ``dynprof_mark`` in ``mstx.c``.

    Attributes:
        message: What it is called.
        domain: The group that it stands in.
        thread: The system's number of the thread that set it.
        began_ns: When, in ns since the epoch.
        ended_ns: The same for a moment; 0 for a range that is open.
        range: The range's id; 0 for a moment.
    """

    message: str
    domain: str
    thread: int
    began_ns: int
    ended_ns: int
    range: int


class _Mark(ctypes.Structure):
    _fields_ = (
        ("began_ns", ctypes.c_uint64),
        ("ended_ns", ctypes.c_uint64),
        ("range", ctypes.c_uint64),
        ("thread", ctypes.c_uint32),
        ("domain", ctypes.c_uint32),
        ("message", ctypes.c_char * 256),
    )


class Listener:
    """Somebody who is given marks, on the reader's thread.

    Args:
        take: Is given each.
        max_bytes: Of the longest message that it takes; it does not hear of longer ones.
        dropped_before: How many were dropped before it came.

    Attributes:
        dropped: Marks that found no room while it listened; valid after :meth:`wait_drained`.
    """

    def __init__(self, take: Take, max_bytes: int, dropped_before: int) -> None:
        self.take, self.max_bytes, self.is_leaving = take, max_bytes, False
        self.dropped, self._before = 0, dropped_before
        self._drained = threading.Event()

    def set_drained(self, dropped: int) -> None:
        """Note that it has got all; dropped were so many in all."""
        self.dropped = dropped - self._before
        self._drained.set()

    def wait_drained(self, timeout_s: float = DRAIN_TIMEOUT_S) -> bool:
        """Wait until it was given all that was marked before it was told to leave."""
        return self._drained.wait(timeout_s)


class NativeMarks:
    """Hands what C marks to those who listen, on a thread of its own while there are any."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.dynprof_mstx_domain.restype = ctypes.c_char_p
        library.dynprof_mstx_dropped.restype = ctypes.c_uint64
        for name in ("dynprof_mstx_take", "dynprof_mstx_open"):
            function = getattr(library, name)
            function.argtypes, function.restype = (
                (ctypes.c_void_p, ctypes.c_size_t),
                ctypes.c_size_t,
            )
        self._listeners: list[Listener] = []
        self._dropped = 0
        self.forget()
        forget_in_child(self.forget)

    def forget(self) -> None:
        """Let nobody listen, as in a child that was just forked."""
        self._lock = threading.RLock()  # a signal handler may come while it is held
        self._wake = threading.Event()
        for listener in self._listeners:
            listener.set_drained(self._dropped)  # no thread is left that could give it more
        self._listeners = []
        self._buffer = (_Mark * _BATCH)()
        self._dropped = 0

    def listen(self, take: Take, max_bytes: int) -> Listener:
        """Have every mark from now on given to a function.

        Args:
            take: Is given each.
            max_bytes: Of the longest message that it takes.

        Raises:
            RuntimeError: No thread can be started; nothing has changed.
        """
        with self._lock:
            self._dropped += self._library.dynprof_mstx_dropped()
            listener = Listener(take, max_bytes, self._dropped)
            if not self._listeners:  # before anybody listens: there may be no thread to be had
                own_thread(self._read, "dynprof-c-marks").start()
            self._listeners.append(listener)
            self._update_library()
        return listener

    def remove(self, listener: Listener) -> None:
        """Let one get what is left, soon, and then no more.

        Does not wait: the reader may be busy for as long as C marks faster than Python reads.
        """
        listener.is_leaving = True
        self._wake.set()

    def all_open(self, max_bytes: int) -> list[NativeMark]:
        """Return the ranges that are open now, but for those with longer messages."""
        found = (_Mark * _MAX_OPEN)()
        count = self._library.dynprof_mstx_open(found, _MAX_OPEN)
        short = (found[at] for at in range(count) if len(found[at].message) <= max_bytes)
        return [self._to_mark(mark) for mark in short]

    def _update_library(self) -> None:
        longest = max((listener.max_bytes for listener in self._listeners), default=0)
        self._library.dynprof_mstx_listeners(len(self._listeners), longest)

    def _read(self) -> None:
        while self._read_once():
            pass

    def _read_once(self) -> bool:
        """Deliver what there is, and see off those who leave; return whether anyone is left."""
        leaving = [listener for listener in self._listeners if listener.is_leaving]
        count = self._deliver()
        with self._lock:
            self._dropped += self._library.dynprof_mstx_dropped()
            for listener in leaving:
                self._listeners.remove(listener)
                self._update_library()
                listener.set_drained(self._dropped)
            if not self._listeners:
                return False
        if count < _QUEUE_SIZE:
            self._wake.wait(POLL_S)
            self._wake.clear()
        return True

    def _deliver(self) -> int:
        """Deliver what was marked so far, if not more; return how many marks that was.

        Holds no lock meanwhile: whoever comes has what is marked from then on.
        """
        delivered = 0
        while delivered < _QUEUE_SIZE and (
            count := self._library.dynprof_mstx_take(self._buffer, _BATCH)
        ):
            delivered += count
            for number in range(count):
                size, mark = len(self._buffer[number].message), self._to_mark(self._buffer[number])
                for listener in self._listeners:
                    if size <= listener.max_bytes:
                        listener.take(mark)
        return delivered

    def _to_mark(self, mark: _Mark) -> NativeMark:
        return NativeMark(
            message=mark.message.decode(errors="replace"),
            domain=self._library.dynprof_mstx_domain(mark.domain).decode(errors="replace"),
            thread=mark.thread,
            began_ns=mark.began_ns,
            ended_ns=mark.ended_ns,
            range=mark.range,
        )


@functools.cache
def native_marks() -> NativeMarks | None:
    """Return what is marked from C; None where the library was not built.

    Nor beside the vendor's, which has the same name: whoever asks for it has to get that one.
    """
    if "torch_npu" in sys.modules or not PATH.exists():
        return None
    try:
        return NativeMarks(ctypes.CDLL(str(PATH)))
    except OSError:  # of another machine
        return None
