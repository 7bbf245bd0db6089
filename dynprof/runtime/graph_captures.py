"""Graph captures under way in this process: work put on a stream, to be run later as one graph.

Meanwhile nothing may synchronise or query that stream or its device, on any thread and in any mode
of capturing, and a profiler that is set up or ended does both: the capture would fail, and the
training with it. So profilers wait for captures, and captures for a profiler that is being opened
or closed.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynprof.errors import BackendError
from dynprof.runtime.forked_child import forget_in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 30.0
"""Longest wait for captures to end, of a profiler that has to be opened or closed now."""
CAPTURES_WAIT_S = 3.0
"""The same at the end of the process, with which they end then."""
_PAUSE_S = 0.001


@dataclass(frozen=True)
class _Capture:
    what: str
    graph: weakref.ref[object]
    thread: threading.Thread = field(default_factory=threading.current_thread)

    def __str__(self) -> str:
        return f"{self.what} is being captured on thread {self.thread.name}"

    @property
    def is_on_this_thread(self) -> bool:
        return self.thread is threading.current_thread()


class GraphCaptures:
    """Knows the captures of all threads that began through a class it follows, or are declared."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Know of none, as in a child that was just forked."""
        self._process_ends = False
        self._changing = threading.RLock()
        self._known: dict[int, _Capture] = {}
        self._deferred: list[tuple[threading.Thread, Callable[[], object]]] = []

    def under_way(self) -> str | None:
        """Say which capture is under way, on whatever thread; None where none is."""
        return next((str(one) for one in self._active()), None)

    def on_this_thread(self) -> str | None:
        """Say which one the calling thread is in."""
        return next((str(one) for one in self._active() if one.is_on_this_thread), None)

    def defer(self, action: Callable[[], object]) -> str | None:
        """Have something done once this thread is in no capture, by this thread.

        Returns:
            What it waits for; None where it is in none, and nothing is put off.
        """
        reason = self.on_this_thread()
        if reason:
            self._deferred.append((threading.current_thread(), action))
        return reason

    @contextlib.contextmanager
    def block_captures(self) -> Iterator[None]:
        """Have captures wait for the body, which touches devices; first wait for theirs.

        Raises:
            BackendError: This thread is in one itself, or another one did not end.
        """
        with self._after_captures(WAIT_S):
            if reason := self.under_way():
                raise BackendError(reason)
            yield

    @contextlib.contextmanager
    def block_captures_now(self) -> Iterator[bool]:
        """Have captures begin after the body, without a wait for those that are under way.

        Yields:
            Whether they wait for it: not where another thread opens or closes a profiler.
        """
        held = self._changing.acquire(blocking=False)
        try:
            yield held
        finally:
            if held:
                self._changing.release()

    def process_ends(self) -> None:
        """Wait a little for captures of other threads; what goes on then counts no more."""
        with self._after_captures(CAPTURES_WAIT_S):
            self._process_ends = True

    @contextlib.contextmanager
    def _after_captures(self, patience_s: float) -> Iterator[None]:
        """Have none begin in the body; wait first, for a while, until no other thread's goes on.

        Polls, as nothing tells of a capture whose graph is garbage-collected.
        """
        end_s = time.monotonic() + patience_s
        while True:
            with self._changing:
                if not self.under_way() or self.on_this_thread() or time.monotonic() > end_s:
                    yield
                    return
            time.sleep(_PAUSE_S)

    def begin(self, graph: object, what: str) -> None:
        """Note that a capture begins on this thread, once no profiler is being opened or closed.

        Args:
            graph: Stands for it; where it is gone, so is the capture.
            what: Such as "a CUDA graph".
        """
        with self._changing:
            self._known[id(graph)] = _Capture(what, weakref.ref(graph))

    def end(self, graph: object) -> None:
        """Note its end, and do what was put off until then."""
        with self._changing:
            self._known.pop(id(graph), None)
        if self.on_this_thread():
            return
        here = threading.current_thread()
        due = [action for thread, action in self._deferred if thread is here]
        self._deferred = [one for one in self._deferred if one[0] is not here]
        for action in due:
            action()

    def follow(self, graphs: Any, what: str) -> None:
        """Know of all captures of a class of graphs, with the methods that torch's have; once."""
        if "_dynprof_follows" in vars(graphs):
            return
        graphs._dynprof_follows = True
        capture_begin, capture_end = graphs.capture_begin, graphs.capture_end

        @functools.wraps(capture_begin)
        def begin(graph: object, *args: Any, **kwargs: Any) -> Any:
            self.begin(graph, what)
            done = False
            try:
                found = capture_begin(graph, *args, **kwargs)
                done = True
            finally:
                if not done:
                    self.end(graph)
            return found

        @functools.wraps(capture_end)
        def end(graph: object, *args: Any, **kwargs: Any) -> Any:
            try:
                return capture_end(graph, *args, **kwargs)
            finally:
                self.end(graph)

        graphs.capture_begin, graphs.capture_end = begin, end

    def _active(self) -> list[_Capture]:
        known = [] if self._process_ends else list(self._known.values())
        return [one for one in known if one.graph() is not None]


GRAPH_CAPTURES = GraphCaptures()
"""The process has one."""


class _Entered:
    """Stands for one time that a declared capture was entered."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()


class graph_capture:  # noqa: N801 - used as a function is
    """Say that a graph is being captured in the body: no window opens or closes meanwhile.

    For captures that torch's and torch_npu's classes of graphs do not begin, such as an extension's
    own. May be entered any number of times, and on several threads.
    """

    def __init__(self) -> None:
        self._entered: list[_Entered] = []

    def __enter__(self) -> None:
        entered = _Entered()
        self._entered.append(entered)
        GRAPH_CAPTURES.begin(entered, "a graph")

    def __exit__(self, *_: object) -> None:
        here = threading.current_thread()
        newest_first = self._entered[::-1]
        entered = next((one for one in newest_first if one.thread is here), newest_first[0])
        self._entered.remove(entered)
        GRAPH_CAPTURES.end(entered)


forget_in_child(GRAPH_CAPTURES.forget)
