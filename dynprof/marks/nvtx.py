"""NVTX: what a script marks through ``torch.cuda.nvtx``, and dynprof's own marks passed on to it.

torch's functions call those of one object, which another one stands before while somebody listens:
functions that the script has kept are heard too. What a call returns or raises is that object's, as
without us: a torch without CUDA raises, and the mark is heard all the same.
"""

from __future__ import annotations

import sys
from threading import get_native_id
from time import time_ns
from typing import TYPE_CHECKING, Any

from dynprof.marks.open_ranges import MAX_STARTED, forget_oldest
from dynprof.marks.sinks import SINKS, Range, Sink
from dynprof.marks.sources import Source
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.warnings_to_script import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class NvtxSink(Sink):
    """Sets each mark there too, and each range as one that may cross others.

    For torch's NVTX has no domains, in each of which ours nest. Nothing goes in a circle: what a
    window hears of NVTX comes to no sink of ``dynprof.mstx``, and it does not hear what is sent.

    Args:
        functions: Those that torch's module calls.
    """

    wants_begins = True

    def __init__(self, functions: Any) -> None:
        self._functions, self._boundary = functions, ErrorBoundary(StderrNotes())
        self._numbers: dict[int, tuple[Range, Any]] = {}

    def mark(self, message: str, domain: str, stream: object = None) -> None:  # noqa: ARG002
        """Set it there."""
        self._do(lambda: self._functions.markA(_named(message, domain)))

    def begin(self, begun: Range) -> None:
        """Begin it there."""
        self._do(lambda: self._begin(begun))

    def end(self, ended: Range) -> None:
        """End it there, if it was begun there."""
        _, number = self._numbers.pop(id(ended), (None, None))
        if number is not None:
            self._do(lambda: self._functions.rangeEnd(number))

    def _begin(self, begun: Range) -> None:
        number = self._functions.rangeStartA(_named(begun.message, begun.domain))
        self._numbers[id(begun)] = (begun, number)
        if len(self._numbers) > MAX_STARTED:  # a script may never end any
            forget_oldest(self._numbers)

    def _do(self, action: Callable[[], object]) -> None:
        self._boundary.attempt("sending a mark to NVTX", action)


def _named(message: str, domain: str) -> str:
    return message if domain == "default" else f"{domain}: {message}"


def send_to_nvtx(*, on: bool) -> None:
    """Begin or end sending marks to NVTX; what hinders it is said to the script."""
    sending = [sink for sink in SINKS.on_streams if isinstance(sink, NvtxSink)]
    if not on:
        for sink in sending:
            SINKS.remove(sink)
    elif not sending:
        functions = nvtx_functions()
        if hasattr(functions, "rangeStartA"):
            SINKS.add(NvtxSink(functions))
        else:
            lacks = "this torch has no NVTX, which comes with CUDA"
            why = lacks if functions else "import torch before"
            warn_script(f"dynprof sends no marks to NVTX: {why}")


UNNAMED = "(begun before the window)"
"""Stands for what such a range is called: NVTX is asked to end it, and not told which it is."""


def _module() -> Any:
    """Return torch's module; None where the script has not imported it, or not yet as a whole."""
    found = sys.modules.get("torch.cuda.nvtx")
    return found if hasattr(found, "_nvtx") else None


def nvtx_functions() -> Any:
    """Return what torch's module calls, without us before it; None where it is not imported."""
    functions = getattr(_module(), "_nvtx", None)
    return functions.functions if isinstance(functions, _Interceptor) else functions


class _Interceptor:
    """Stands before the functions that torch's module calls, and tells of them.

    Args:
        functions: What stood there.
        marks: Who is told.
    """

    def __init__(self, functions: Any, marks: NvtxMarks) -> None:
        self.functions, self._marks = functions, marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.functions, name)

    def disable(self) -> None:
        """Only pass on: this one is left below somebody else's, and another one tells."""
        self._marks = NvtxMarks()

    def markA(self, message: Any) -> Any:  # noqa: N802 - as NVTX has it, and so on
        self._marks.mark(message)
        return self.functions.markA(message)

    def rangePushA(self, message: Any) -> Any:  # noqa: N802
        self._marks.push(message)
        done = False
        try:
            found = self.functions.rangePushA(message)
            done = True
        finally:
            if not done and _is_of_range(sys._getframe(1).f_back):
                self._marks.pop()
        return found

    def rangePop(self) -> Any:  # noqa: N802
        known = self._marks.pop()
        left = self.functions.rangePop()
        if not known and isinstance(left, int) and left >= 0:
            self._marks.end_unnamed()
        return left

    def rangeStartA(self, message: Any) -> Any:  # noqa: N802
        number = self.functions.rangeStartA(message)
        self._marks.start(message, number)
        return number

    def rangeEnd(self, number: Any) -> Any:  # noqa: N802
        self._marks.end(number)
        return self.functions.rangeEnd(number)


def _is_of_range(caller: FrameType | None) -> bool:
    """Return whether torch's own ``range()`` pushes: where that fails, its block does not run."""
    return caller is not None and caller.f_globals is getattr(_module(), "__dict__", None)


class NvtxMarks(Source):
    """Tells sinks of NVTX's marks and ranges; those of a thread nest, the others may cross."""

    domain = "nvtx"
    _newest: _Interceptor | None = None

    def mark(self, message: object) -> None:
        """Tell of a moment."""
        if isinstance(message, str):
            self._send_mark(message)

    def push(self, message: object) -> None:
        """Note the begin of a range inside those of this thread."""
        if isinstance(message, str):
            begun = self._begun(message)
            self._pushed.setdefault(begun.thread, []).append(begun)
            self._send_begin(begun)

    def pop(self) -> bool:
        """Tell of the newest of this thread; return whether its begin was noted."""
        stack = self._pushed.get(get_native_id())
        if not stack:
            return False
        self._send_end(stack.pop())
        return True

    def start(self, message: object, number: Any) -> None:
        """Note the begin of a range with a number."""
        if isinstance(message, str):
            begun = self._started[number] = self._begun(message, number)
            self._send_begin(begun)

    def end(self, number: Any) -> None:
        """Tell of its end."""
        if not isinstance(number, int):
            return
        if ended := self._started.pop(number, None):
            self._send_end(ended)
        else:
            self.end_unnamed(number)

    def end_unnamed(self, number: Any = 0) -> None:
        """Tell of one that began before anybody listened, at an unknown time."""
        self._send_end(Range(UNNAMED, self.domain, get_native_id(), 0, number))

    def _begun(self, message: str, number: Any = 0) -> Range:
        return Range(message, self.domain, get_native_id(), time_ns(), number)

    def _listen(self) -> None:
        module = _module()
        if module and not isinstance(module._nvtx, _Interceptor):
            if self._newest:
                self._newest.disable()
            module._nvtx = self._newest = _Interceptor(module._nvtx, self)

    def _stop_listening(self) -> None:
        module = _module()
        if module:
            module._nvtx = nvtx_functions()

    def _all_open(self) -> list[Range]:
        pushed = [one for stack in self._pushed.copy().values() for one in stack]
        return [*self._started.copy().values(), *pushed]

    def _forget_open(self) -> None:
        self._started: dict[Any, Range] = {}
        self._pushed: dict[int, list[Range]] = {}


NVTX_MARKS = NvtxMarks()
"""The process has one."""
