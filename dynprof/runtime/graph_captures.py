"""Graph captures that are running in this process: work recorded on a stream to run as one graph.

During a capture nothing may synchronise or query that stream or its device, on any thread and in
any capture mode. A profiler does both when it is set up or ended. That would make the capture fail,
and the training with it. So profilers wait for captures, and captures wait while a profiler is
being opened or closed.
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
from dynprof.runtime.process_hooks import call_in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 30.0
"""Longest wait for captures to end before a profiler is opened or closed, in seconds."""
CAPTURES_WAIT_S = 3.0
"""Longest wait at the end of the process, in seconds; captures end with the process."""
_PAUSE_S = 0.001
"""Seconds between two checks whether captures have ended."""


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
    """Tracks the captures of all threads that began in a followed class, or were declared."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all captures, as in a child that was just forked."""
        self._process_ends = False
        self._changing = threading.RLock()
        self._known: dict[int, _Capture] = {}
        self._deferred: list[tuple[threading.Thread, Callable[[], object]]] = []

    def under_way(self) -> str | None:
        """Return which capture is running on any thread; None if none is."""
        return next((str(one) for one in self._active()), None)

    def on_this_thread(self) -> str | None:
        """Return which capture the calling thread is in; None if it is in none."""
        return next((str(one) for one in self._active() if one.is_on_this_thread), None)

    def defer(self, action: Callable[[], object]) -> str | None:
        """Run an action on this thread once it is in no capture.

        Returns:
            The capture that it waits for; None if this thread is in none, and nothing is deferred.
        """
        reason = self.on_this_thread()
        if reason:
            self._deferred.append((threading.current_thread(), action))
        return reason

    @contextlib.contextmanager
    def block_captures(self) -> Iterator[None]:
        """Make captures wait for the body, which touches devices; first wait for running captures.

        Raises:
            BackendError: This thread is in a capture, or another thread's capture did not end.
        """
        with self._after_captures(WAIT_S):
            if reason := self.under_way():
                raise BackendError(reason)
            yield

    @contextlib.contextmanager
    def block_captures_now(self) -> Iterator[bool]:
        """Make new captures wait for the body, without waiting for running ones.

        Yields:
            Whether captures wait; False if another thread is opening or closing a profiler.
        """
        held = self._changing.acquire(blocking=False)
        try:
            yield held
        finally:
            if held:
                self._changing.release()

    def process_ends(self) -> None:
        """Wait a little for captures of other threads; ignore the captures that are left."""
        with self._after_captures(CAPTURES_WAIT_S):
            self._process_ends = True

    @contextlib.contextmanager
    def _after_captures(self, patience_s: float) -> Iterator[None]:
        """Block new captures in the body; first wait until no other thread is capturing.

        It polls, because no event reports a capture whose graph is garbage-collected.
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
            graph: The object of the capture; once it is collected, the capture is over.
            what: Such as "a CUDA graph".
        """
        with self._changing:
            self._known[id(graph)] = _Capture(what, weakref.ref(graph))

    def end(self, graph: object) -> None:
        """Note the end of a capture, and run the actions deferred until then."""
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
        """Track all captures of a graph class that has torch's methods; patches it once."""
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
"""The one object of the process."""


class _Entered:
    """Represents one entry into a declared capture."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()


class graph_capture:  # noqa: N801 - used as a function is
    """Declare that a graph is being captured in the body: no window opens or closes during it.

    For captures that the graph classes of torch and torch_npu do not begin, such as an extension's
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


call_in_child(GRAPH_CAPTURES.reset)
