"""The library of C marks: its path, and the marks that were set through it."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dynprof.runtime.process_hooks import call_in_child
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
"""Seconds between two reads of the library's queue, which holds 16,384 marks."""
DRAIN_TIMEOUT_S = 30.0
"""Longest wait of an ended window for its last marks."""
_BATCH, _QUEUE_SIZE, _MAX_OPEN = 1024, 16384, 8192
"""Marks that are taken at a time; marks in the queue and open ranges at most, as in ``mstx.c``."""


class NativeMark(NamedTuple):
    """A moment or range that C set; see ``dynprof_mark`` in ``mstx.c``.

    Attributes:
        message: Its name.
        domain: Its group of marks.
        thread: The system's id of the thread that set it.
        began_ns: Its start, in ns since the epoch.
        ended_ns: Its end; equals ``began_ns`` for a moment, and is 0 for an open range.
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
    """A receiver of marks, on the reader's thread.

    Args:
        take: Receives each mark.
        max_bytes: Longest message that it receives, in bytes.
        dropped_before: Marks dropped before it was added.

    Attributes:
        dropped: Marks that found no room while it listened; valid after :meth:`wait_drained`.
    """

    def __init__(self, take: Take, max_bytes: int, dropped_before: int) -> None:
        self.take, self.max_bytes, self.is_leaving = take, max_bytes, False
        self.dropped, self._before = 0, dropped_before
        self._drained = threading.Event()

    def set_drained(self, dropped: int) -> None:
        """Note that it has received all marks; ``dropped`` is the library's total count."""
        self.dropped = dropped - self._before
        self._drained.set()

    def wait_drained(self, timeout_s: float = DRAIN_TIMEOUT_S) -> bool:
        """Wait until it has received all marks from before its removal; False on a timeout."""
        return self._drained.wait(timeout_s)


class NativeMarks:
    """Passes marks from C to listeners, on its own thread while there are any."""

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
        self.reset()
        call_in_child(self.reset)

    def reset(self) -> None:
        """Drop all listeners, as in a child that was just forked."""
        self._lock = threading.RLock()  # a signal handler may run while it is held
        self._wake = threading.Event()
        for listener in self._listeners:
            listener.set_drained(self._dropped)  # no thread is left to deliver more
        self._listeners = []
        self._buffer = (_Mark * _BATCH)()
        self._dropped = 0

    def listen(self, take: Take, max_bytes: int) -> Listener:
        """Pass every mark from now on to a function.

        Args:
            take: Receives each mark.
            max_bytes: Longest message that it receives, in bytes.

        Raises:
            RuntimeError: No thread can be started; nothing has changed.
        """
        with self._lock:
            self._dropped += self._library.dynprof_mstx_dropped()
            listener = Listener(take, max_bytes, self._dropped)
            if not self._listeners:  # before the listener is added: starting may fail
                own_thread(self._read, "dynprof-c-marks").start()
            self._listeners.append(listener)
            self._update_library()
        return listener

    def remove(self, listener: Listener) -> None:
        """Remove a listener soon, after the marks so far are delivered to it.

        Does not wait: the reader is busy while C marks faster than Python reads.
        """
        listener.is_leaving = True
        self._wake.set()

    def all_open(self, max_bytes: int) -> list[NativeMark]:
        """Return the open ranges, without those with longer messages."""
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
        """Deliver the marks so far and remove leaving listeners; return whether any remain."""
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
        """Deliver at least the marks so far; return the number of delivered marks.

        Holds no lock: a listener added during the call receives later marks.
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
    """Return the marks from C; None where the library was not built.

    Also None next to torch_npu: the vendor's library has the same name, and the job must get it.
    """
    if "torch_npu" in sys.modules or not PATH.exists():
        return None
    try:
        return NativeMarks(ctypes.CDLL(str(PATH)))
    except OSError:  # built for another machine
        return None
