"""Listeners for the start and end of ``torch.profiler.record_function`` ranges.

One wrapper around each of its two methods serves all listeners. This module never imports torch.
"""

from __future__ import annotations

import functools
import sys
import threading
from threading import get_native_id
from time import time_ns
from typing import TYPE_CHECKING, Any, Protocol

from dynprof.marks.sinks import Range, Source
from dynprof.runtime.process_hooks import call_in_child

if TYPE_CHECKING:
    from collections.abc import Callable

    Methods = tuple[Callable[..., Any], Callable[..., Any]]


class Listener(Protocol):
    """Is called for ranges, on their own thread; must be fast and must not raise."""

    def on_enter(self, annotation: Any) -> None:
        """Handle a range that has begun."""

    def on_exit(self, annotation: Any) -> None:
        """Handle a range that ends."""


class RecordFunctions:
    """Calls the listeners; a process has one such object."""

    def __init__(self) -> None:
        self._made: Methods | None = None
        self._before: Methods | None = None
        self.reset()

    def reset(self) -> None:
        """Drop all listeners, as in a child that was just forked."""
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.RLock()

    def add(self, listener: Listener) -> None:
        """Add a listener; adding it again changes nothing."""
        with self._lock:
            self._wrap()
            if listener not in self._listeners:
                self._listeners = (*self._listeners, listener)

    def remove(self, listener: Listener) -> None:
        """Remove a listener; may be called twice."""
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one is not listener)
            if not self._listeners:
                self._unwrap()

    def _wrap(self) -> None:
        kind = _record_function()
        if kind is None or self._is_wrapped(kind):
            return
        enter, leave = kind.__enter__, kind.__exit__

        @functools.wraps(enter)
        def begin(annotation: Any) -> Any:
            result = enter(annotation)
            for listener in self._listeners_of(begin):
                listener.on_enter(annotation)
            return result

        @functools.wraps(leave)
        def end(annotation: Any, *reason: Any) -> Any:
            for listener in self._listeners_of(end):
                listener.on_exit(annotation)
            return leave(annotation, *reason)

        self._before, self._made = (enter, leave), (begin, end)
        kind.__enter__, kind.__exit__ = begin, end

    def _listeners_of(self, method: Callable[..., Any]) -> tuple[Listener, ...]:
        """Return the listeners of a wrapper; none for an older wrapper below another one."""
        return self._listeners if self._made and method in self._made else ()

    def _is_wrapped(self, kind: Any) -> bool:
        """Return whether our wrapper is installed, even below another one."""
        method = kind.__enter__
        while method and not (self._made and method is self._made[0]):
            method = getattr(method, "__wrapped__", None)
        return method is not None

    def _unwrap(self) -> None:
        """Restore the original methods, unless another wrapper was put over ours."""
        kind = _record_function()
        if self._before and (kind.__enter__, kind.__exit__) == self._made:
            kind.__enter__, kind.__exit__ = self._before
            self._before = self._made = None


def _record_function() -> Any:
    """Return torch's class; None where the script has not imported torch."""
    return getattr(sys.modules.get("torch.autograd.profiler"), "record_function", None)


RECORD_FUNCTIONS = RecordFunctions()
"""The process's listeners."""
call_in_child(RECORD_FUNCTIONS.reset)


class RecordFunctionMarks(Source):
    """Sends such ranges to sinks, including torch's own, from loaders and optimizers.

    One object may be entered several times at once, such as the decorator of a function.
    """

    domain = "record_function"

    def on_enter(self, annotation: Any) -> None:
        """Record and send the start of a range."""
        begun = Range(str(annotation.name), self.domain, get_native_id(), time_ns(), 0)
        with self._lock:
            self._open.setdefault(id(annotation), (annotation, []))[1].append(begun)
        self._send_begin(begun)

    def on_exit(self, annotation: Any) -> None:
        """Send the end of a range; a range that began unseen has an unknown begin."""
        thread = get_native_id()
        unknown = Range(str(annotation.name), self.domain, thread, 0, 0)
        with self._lock:
            _, begun = self._open.get(id(annotation), (None, []))
            ended = next((one for one in reversed(begun) if one.thread == thread), None)
            ended = ended or (begun[-1] if begun else unknown)
            if ended in begun:
                begun.remove(ended)
            if not begun:
                self._open.pop(id(annotation), None)
        self._send_end(ended)

    def _listen(self) -> None:
        RECORD_FUNCTIONS.add(self)

    def _stop_listening(self) -> None:
        RECORD_FUNCTIONS.remove(self)

    def _all_open(self) -> list[Range]:
        return [one for _, begun in self._open.values() for one in begun]

    def _forget_open(self) -> None:
        self._open: dict[int, tuple[Any, list[Range]]] = {}


RECORD_FUNCTION_MARKS = RecordFunctionMarks()
"""The process's source of such ranges."""
