"""The ranges that have begun and not ended, whether or not a window records."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar

from dynprof.marks.sinks import SINKS, Range
from dynprof.runtime.process_hooks import call_in_child

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STARTED = 10_000
"""Most open ranges that any thread may end. The oldest are dropped: a script may never end any."""
MAX_PUSHED = 10_000
"""Most open ranges that a thread has pushed in a domain."""

Function = TypeVar("Function", bound="Callable[..., Any]")


def compiled_as(result: object) -> Callable[[Function], Function]:
    """Return a decorator that makes torch compile a call as a constant result.

    If torch traced the call, each new time and range number would cause a recompilation, until
    torch gives up and compiles nothing. A graph that breaks inside a ``with`` block is not compiled
    either.

    Args:
        result: The call's result in compiled code.
    """

    def nothing(*_args: object, **_kwargs: object) -> object:
        return result

    def decorate(function: Function) -> Function:
        vars(function)["_torchdynamo_inline"] = nothing  # the name that torch's own wrappers have
        return function

    return decorate


class _PushedRanges:
    """The ranges that one thread has pushed, by domain."""

    def __init__(self) -> None:
        self.by_domain: dict[str, list[Range]] = {}
        _threads.add(self)


class _Stacks(threading.local):
    """The calling thread's pushed ranges, which end with the thread."""

    def __init__(self) -> None:
        self.pushed = _PushedRanges()
        self.number = threading.get_native_id()


_threads: weakref.WeakSet[_PushedRanges] = weakref.WeakSet()
STACKS = _Stacks()
"""The calling thread's pushed ranges, and its cached id."""
_started: dict[int, Range] = {}
_numbers = itertools.count(1)
_new_tuple = tuple.__new__
"""Creates a named tuple in half the time of a call to its class."""


@compiled_as(0)
def start(message: str, domain: str, stream: object = None) -> int:
    """Begin a range that any thread may end; return its number."""
    number = next(_numbers)
    begun = _new_tuple(Range, (message, domain, STACKS.number, time_ns(), number, stream))
    _started[number] = begun
    if len(_started) > MAX_STARTED:
        forget_oldest(_started)
    if SINKS.of_begins or stream is not None:
        _send_begin(begun)
    return number


@compiled_as(False)
def end(number: int) -> bool:
    """End a range; return whether it was open."""
    ended = _started.pop(number, None)
    if ended is not None and SINKS.on_streams:
        _send_end(ended)
    return ended is not None


def push(message: str, domain: str, stream: object = None) -> int:
    """Begin a range inside those of this thread; return how many were open before."""
    pushed = STACKS.pushed
    stack = pushed.by_domain.get(domain)
    if stack is None:
        stack = pushed.by_domain[domain] = []
    begun = _new_tuple(Range, (message, domain, STACKS.number, time_ns(), 0, stream))
    stack.append(begun)
    if len(stack) > MAX_PUSHED:
        del stack[0]
    if SINKS.of_begins or stream is not None:
        _send_begin(begun)
    return len(stack) - 1


def pop(domain: str) -> int:
    """End the newest range of this thread; return how many are still open, -1 where none was."""
    stack = STACKS.pushed.by_domain.get(domain)
    if not stack:
        return -1
    ended = stack.pop()
    if SINKS.on_streams:
        _send_end(ended)
    return len(stack)


def is_open(domain: str) -> bool:
    """Return whether this thread has pushed a range that is open."""
    return bool(STACKS.pushed.by_domain.get(domain))


def all_open() -> list[Range]:
    """Return the open ranges of all threads."""
    found = list(_started.copy().values())
    for thread in _all_threads():
        for stack in thread.by_domain.copy().values():
            found += stack
    return found


def _all_threads() -> list[_PushedRanges]:
    while True:
        with contextlib.suppress(RuntimeError):  # a thread has just pushed its first range
            return list(_threads)


def forget_oldest(begun: dict[int, Any]) -> None:
    """Drop the oldest open range, to make room for a newer one."""
    with contextlib.suppress(StopIteration, RuntimeError, KeyError):  # other threads end ranges
        del begun[next(iter(begun))]


def _update_thread_number() -> None:
    """Update the cached id of a forked child's only thread, which differs from its parent's."""
    STACKS.number = threading.get_native_id()


call_in_child(_update_thread_number)


def _send_begin(begun: Range) -> None:
    for sink in SINKS.for_begin(begun):
        sink.begin(begun)


def _send_end(ended: Range) -> None:
    for sink in SINKS.for_message(ended.message, ended.stream):
        sink.end(ended)
