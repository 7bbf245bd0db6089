"""Marks and ranges that a script sets itself, with the names of Ascend's ``mstx``.

They cost next to nothing until a window requests them (``"mstx": true``). Its trace then has a
track for each domain. Ranges of :func:`range_push` and :func:`range_pop` nest on their thread;
those of :func:`range_start` and :func:`range_end` may cross each other and threads. A range that
begins before a window or ends after it is cut at the border, and labelled so.

A bad argument gives a warning and loses the mark, but never stops the script.
"""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from dynprof.marks import open_ranges
from dynprof.marks.open_ranges import STACKS, compiled_as
from dynprof.marks.sinks import ALWAYS_SHORT_CHARS, SINKS, is_short
from dynprof.runtime.modules import alias_import
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from dynprof.marks.subscription import Marker, Subscription

Function = TypeVar("Function", bound="Callable[..., Any]")

FAILED = 0
"""The id of a range that could not begin."""


@compiled_as(None)
def mark(message: str | None = None, stream: object = None, domain: str = "default") -> None:
    """Mark this moment.

    Args:
        message: Its name: 1 to 156 bytes; up to 255 while a subscriber takes marks.
        stream: A stream of a device, or its handle: if the window records the device, the mark is
            on the stream's track too. None or 0: the host alone. Other values give a warning.
        domain: A group of marks that the config can keep or leave out.
    """
    plain = stream is None and type(domain) is str and domain and type(message) is str
    if plain and message and len(message) < ALWAYS_SHORT_CHARS:  # saves some calls
        if take := SINKS.take:
            take((message, domain, STACKS.number, time_ns()))
            return
        for mark_there in SINKS.marks:
            mark_there(message, domain)
    elif _is_fit(message, stream, domain, "mark") and SINKS.on_streams:
        for sink in SINKS.for_message(message, stream):
            sink.mark(message, domain, stream)


@compiled_as(FAILED)
def range_start(message: str | None = None, stream: object = None, domain: str = "default") -> int:
    """Begin a range that any thread may end.

    Returns:
        The id for :func:`range_end`; 0 with a warning if an argument is invalid.
    """
    if _is_fit(message, stream, domain, "range_start"):
        return open_ranges.start(message, domain, stream)
    return FAILED


@compiled_as(None)
def range_end(range_id: int, domain: str = "default") -> None:  # noqa: ARG001 - the vendor's
    """End a range; the id of one that could not begin or has ended is ignored."""
    if isinstance(range_id, int):
        open_ranges.end(range_id)
    else:
        warn_script(f"mstx.range_end({range_id!r}): it takes what range_start returned")


@compiled_as(0)
def range_push(message: str | None = None, stream: object = None, domain: str = "default") -> int:
    """Begin a range inside those that are open on this thread.

    Returns:
        How many were open before; -1 with a warning if an argument is invalid.
    """
    if _is_fit(message, stream, domain, "range_push"):
        return open_ranges.push(message, domain, stream)
    return -1


@compiled_as(0)
def range_pop(domain: str = "default") -> int:
    """End the newest open range of this thread.

    Returns:
        How many are still open; -1 with a warning if none was.
    """
    left = open_ranges.pop(domain) if isinstance(domain, str) else -1
    if left < 0:
        warn_script("mstx.range_pop(): no range is open on this thread")
    return left


def is_open(domain: str = "default") -> bool:
    """Return whether a range of :func:`range_push` is open on this thread."""
    return isinstance(domain, str) and open_ranges.is_open(domain)


class annotate:  # noqa: N801 - the vendor's name
    """A range as a context manager or a decorator.

    It may cross others, as blocks of several coroutines do. A decorated coroutine is a range while
    it runs, a decorated generator from its first item to its end. Threads may share one object.
    Coroutines whose blocks cross need one each.

    Args:
        message: Its name; by default the name of the decorated function.
        stream: As for :func:`mark`.
        domain: As for :func:`mark`.
    """

    def __init__(
        self, message: str | None = None, stream: object = None, domain: str = "default"
    ) -> None:
        self.message, self.stream, self.domain = message, stream, domain
        self._begun: dict[int, list[int]] = {}

    def __enter__(self) -> Self:
        number = range_start(self.message, self.stream, self.domain)
        self._begun.setdefault(STACKS.number, []).append(number)
        return self

    def __exit__(self, *_: object) -> None:
        here = STACKS.number
        if here not in self._begun:  # a generator's block may end on another thread than it began
            here = next(iter(self._begun.copy()))
        begun = self._begun[here]
        open_ranges.end(begun.pop())
        if not begun:
            del self._begun[here]

    def __call__(self, func: Function) -> Function:
        """Make every call of a function a range."""
        from dynprof.marks.annotation import around

        message = self.message or getattr(func, "__name__", None)
        return around(func, lambda: annotate(message, self.stream, self.domain))


def mstx_range(
    message: str | None = None, stream: object = None, domain: str = "default"
) -> annotate:
    """Make every call of a function a range."""
    return annotate(message, stream, domain)


def subscribe(callback: Callable[[Marker], object]) -> Subscription:
    """Call a function with every mark, and with every range after its end.

    Args:
        callback: Takes a ``Marker``: its message, domain, thread, ``began_ns`` and ``ended_ns``.
            It is called at once, on the thread that sets the mark. Marks of C come up to 50 ms
            later, on a thread of dynprof. An exception of the callback ends the subscription.

    Returns:
        A context manager; its ``cancel()`` ends the subscription as well.
    """
    from dynprof.marks.subscription import Subscription

    return Subscription(callback)


def to_nvtx(*, on: bool = True) -> None:
    """Also send every mark and range to NVTX, with or without a window.

    This is for Nsight and similar tools; ``dynprof.init(nvtx=True)`` and ``DYNPROF_NVTX=1`` do the
    same. A warning says so if torch is not imported yet or has no NVTX.

    Args:
        on: Whether to send them.
    """
    from dynprof.marks.nvtx import send_to_nvtx

    send_to_nvtx(on=on)


def install() -> None:
    """Let ``import mstx`` find this module in this process, unless there is a real one."""
    alias_import("mstx", __name__)


def _is_fit(message: object, stream: object, domain: object, name: str) -> TypeGuard[str]:
    """Return whether the arguments of a mark are valid; warn the script if not."""
    usual = isinstance(message, str) and 0 < len(message) < ALWAYS_SHORT_CHARS
    if usual and stream is None and isinstance(domain, str) and domain:
        return True
    if not isinstance(domain, str) or not domain:
        text = f"mstx.{name}(): the domain is {domain!r}, it must be a string that is not empty"
    elif not isinstance(message, str) or not message:
        text = f"mstx.{name}(): the message is {message!r}, it must be a string that is not empty"
    elif not is_short(message, SINKS.longest):
        text = f"mstx.{name}(): the message has more than {SINKS.longest} bytes"
    elif not _is_stream(stream):
        kind = type(stream).__name__
        text = f"mstx.{name}(): the stream is a {kind}, it must be a torch.Stream or its handle"
    else:
        return True
    warn_script(text)
    return False


def _is_stream(given: object) -> bool:
    """Return whether it is None, a handle, or a stream of torch or torch_npu."""
    return given is None or isinstance(given, int) or hasattr(type(given), "stream_id")
