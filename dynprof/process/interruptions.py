"""Exceptions of the script's that come up inside dynprof: those that its signal handlers raise."""

from __future__ import annotations

import contextlib
import itertools
import signal
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAKES_ANY_NUMBER = 0x04
"""A flag of code, as in :mod:`inspect`, which takes as long to import as all the rest."""


@contextlib.contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Have Ctrl-C end the process during the body: a command that is loading prints no traceback.

    A handler of SIGINT that is not Python's own stays.
    """
    is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_pythons:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_pythons:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def came_from_a_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised it, which Python runs between any two lines.

    A handler is known by being installed, or by its arguments, a number and a frame: it may have
    restored the default before it raised, or deleted arguments that it does not use.
    """
    installed = {
        getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()
    }
    tail = error.__traceback__ and error.__traceback__.tb_next  # the first is the caller's
    while tail:
        if tail.tb_frame.f_code in installed or _was_given_a_frame(tail.tb_frame):
            return True
        tail = tail.tb_next
    return False


def _was_given_a_frame(frame: FrameType) -> bool:
    """Return whether it was called with a number and, right after it, a frame."""
    code = frame.f_code
    count = code.co_argcount + bool(code.co_flags & _TAKES_ANY_NUMBER)
    given: list[object] = []
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        given += value if isinstance(value, tuple) else [value]
    return any(
        isinstance(number, int) and isinstance(found, FrameType)
        for number, found in itertools.pairwise(given)
    )
