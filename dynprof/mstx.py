"""Marks and ranges that a script sets itself, in the words of Ascend's ``mstx``.

They cost next to nothing until a window records that asks for them (``"mstx": true``), and then
stand in its trace. Ranges of :func:`range_push` and :func:`range_pop` nest on their thread; those
of :func:`range_start` and :func:`range_end` may cross each other and threads.
"""

from __future__ import annotations

import functools
import itertools
import threading
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from dynprof.process.warnings_to_script import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")

MAX_BYTES = 156
"""Of a message; what the Ascend PyTorch Profiler takes of it."""
FAILED = 0
"""What stands for the id of a range that could not be begun."""


class Sink(Protocol):
    """Takes marks while a window records."""

    def mark(self, message: str, domain: str) -> None:
        """Note a moment."""

    def begin(self, number: int, message: str, domain: str) -> None:
        """Note the beginning of a range."""

    def end(self, number: int) -> None:
        """Note its end; one that was not begun here means nothing."""

    def nested(self, message: str, domain: str, began_ns: int) -> None:
        """Note a range on this thread that ends now."""


_sinks: tuple[Sink, ...] = ()
_numbers = itertools.count(1)
_lock = threading.RLock()


class _Stacks(threading.local):
    def __init__(self) -> None:
        self.by_domain: dict[str, list[tuple[str, int]]] = {}


_stacks = _Stacks()


def plug(sink: Sink) -> None:
    """Let a sink take marks."""
    global _sinks
    with _lock:
        _sinks = (*_sinks, sink)


def unplug(sink: Sink) -> None:
    """Let it take no more."""
    global _sinks
    with _lock:
        _sinks = tuple(other for other in _sinks if other is not sink)


def mark(message: str, stream: object = None, domain: str = "default") -> None:  # noqa: ARG001
    """Mark this moment.

    Args:
        message: What to call it: 1 to 156 bytes.
        stream: Taken as the vendor does; the mark stands on the host's side alone.
        domain: A group of marks that the config can keep or leave out.
    """
    if _is_fit("mark", message, domain):
        for sink in _sinks:
            sink.mark(message, domain)


def range_start(message: str, stream: object = None, domain: str = "default") -> int:  # noqa: ARG001
    """Begin a range that any thread may end.

    Returns:
        What :func:`range_end` takes; 0 where the message cannot be taken, which is said.
    """
    if not _is_fit("range_start", message, domain):
        return FAILED
    number = next(_numbers)
    for sink in _sinks:
        sink.begin(number, message, domain)
    return number


def range_end(range_id: int, domain: str = "default") -> None:  # noqa: ARG001
    """End a range."""
    if not isinstance(range_id, int):
        text = f"mstx.range_end({range_id!r}): it takes what range_start returned"
        warn_script(text)
        return
    for sink in _sinks:
        sink.end(range_id)


def range_push(message: str, stream: object = None, domain: str = "default") -> int:  # noqa: ARG001
    """Begin a range inside those that are open on this thread.

    Returns:
        How many were open before; -1 where the message cannot be taken, which is said.
    """
    from time import time_ns

    if not _is_fit("range_push", message, domain):
        return -1
    stack = _stacks.by_domain.setdefault(domain, [])
    stack.append((message, time_ns()))
    return len(stack) - 1


def range_pop(domain: str = "default") -> int:
    """End the newest open range of this thread.

    Returns:
        How many are open still; -1 where none was, which is said.
    """
    stack = _stacks.by_domain.get(domain)
    if not stack:
        warn_script("mstx.range_pop(): no range is open on this thread")
        return -1
    message, began_ns = stack.pop()
    for sink in _sinks:
        sink.nested(message, domain, began_ns)
    return len(stack)


def is_open(domain: str = "default") -> bool:
    """Return whether a range of :func:`range_push` is open on this thread."""
    return bool(_stacks.by_domain.get(domain))


class annotate:  # noqa: N801 - the vendor's name
    """A range as a context manager or a decorator.

    Args:
        message: What to call it; a decorated function's own name where it is empty.
        stream: As for :func:`mark`.
        domain: As for :func:`mark`.
    """

    def __init__(self, message: str = "", stream: object = None, domain: str = "default") -> None:
        self.message, self.stream, self.domain = message, stream, domain
        self._pushed = False

    def __enter__(self) -> Self:
        self._pushed = range_push(self.message, self.stream, self.domain) >= 0
        return self

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            range_pop(self.domain)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of a function a range."""
        message = self.message or getattr(function, "__name__", "")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with annotate(message, self.stream, self.domain):
                return function(*args, **kwargs)

        return call


def mstx_range(
    message: str, stream: object = None, domain: str = "default"
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make every call of a function a range."""
    return annotate(message, stream, domain)


def _is_fit(name: str, message: object, domain: object) -> bool:
    """Return whether a message can be taken; say why where it cannot."""
    if not isinstance(domain, str) or not domain:
        text = f"mstx.{name}(): the domain is {domain!r}, it must be a string that is not empty"
    elif not isinstance(message, str) or not message:
        text = f"mstx.{name}(): the message is {message!r}, it must be a string that is not empty"
    elif len(message) > MAX_BYTES // 4 and len(message.encode()) > MAX_BYTES:
        text = f"mstx.{name}(): the message has more than {MAX_BYTES} bytes"
    else:
        return True
    warn_script(text)
    return False
