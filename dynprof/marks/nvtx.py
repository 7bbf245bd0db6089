"""NVTX: marks set through ``torch.cuda.nvtx``, and dynprof's own marks passed on to NVTX.

torch's functions call the functions of one object. While a sink listens, an interceptor replaces
that object, so calls through functions that the script has kept are seen too. A call still returns
or raises what the object does. A torch without CUDA raises, and the mark is recorded all the same.
"""

from __future__ import annotations

import sys
from threading import get_native_id
from time import time_ns
from typing import TYPE_CHECKING, Any

from dynprof.marks.open_ranges import MAX_STARTED, forget_oldest
from dynprof.marks.sinks import SINKS, Range, Sink, Source
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

UNNAMED = "(begun before the window)"
"""Name of a range whose start was not seen: NVTX's call that ends a range does not name it."""


class NvtxSink(Sink):
    """Passes marks on to NVTX, and ranges as NVTX ranges that may cross others.

    dynprof's ranges nest within a domain, and torch's NVTX has no domains. There is no loop: NVTX
    marks go to no sink of ``dynprof.mstx``, and windows do not see the marks sent here.

    Args:
        functions: The NVTX functions that torch's module calls.
    """

    wants_begins = True

    def __init__(self, functions: Any) -> None:
        self._functions, self._boundary = functions, ErrorBoundary(StderrNotes())
        self._numbers: dict[int, tuple[Range, Any]] = {}

    def mark(self, message: str, domain: str, stream: object = None) -> None:  # noqa: ARG002
        """Set the mark in NVTX."""
        self._do(lambda: self._functions.markA(_named(message, domain)))

    def begin(self, begun: Range) -> None:
        """Begin the range in NVTX."""
        self._do(lambda: self._begin(begun))

    def end(self, ended: Range) -> None:
        """End the range in NVTX, if it was begun there."""
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
    """Start or stop sending marks to NVTX; warns the script where that is impossible."""
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
            why = lacks if functions else "import torch first"
            warn_script(f"dynprof sends no marks to NVTX: {why}")


def _module() -> Any:
    """Return torch's module; None until the script has imported it completely."""
    found = sys.modules.get("torch.cuda.nvtx")
    return found if hasattr(found, "_nvtx") else None


def nvtx_functions() -> Any:
    """Return the object that torch's module calls, below our interceptor; None if not imported."""
    functions = getattr(_module(), "_nvtx", None)
    return functions.functions if isinstance(functions, _Interceptor) else functions


class _Interceptor:
    """Replaces the object whose functions torch's module calls, and reports the calls.

    Args:
        functions: The replaced object.
        marks: Receives the calls.
    """

    def __init__(self, functions: Any, marks: NvtxMarks) -> None:
        self.functions, self._marks = functions, marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.functions, name)

    def disable(self) -> None:
        """Only forward calls: this one is below another wrapper, and a newer one reports."""
        self._marks = NvtxMarks()

    def markA(self, message: Any) -> Any:  # noqa: N802 - NVTX's names, here and below
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
    """Return whether torch's own ``range()`` pushes: if that fails, its block does not run."""
    return caller is not None and caller.f_globals is getattr(_module(), "__dict__", None)


class NvtxMarks(Source):
    """Sends NVTX's marks and ranges to sinks; ranges of a thread nest, others may cross."""

    domain = "nvtx"
    _newest: _Interceptor | None = None

    def mark(self, message: object) -> None:
        """Send a moment."""
        if isinstance(message, str):
            self._send_mark(message)

    def push(self, message: object) -> None:
        """Record the start of a range inside those of this thread."""
        if isinstance(message, str):
            begun = self._begun(message)
            self._pushed.setdefault(begun.thread, []).append(begun)
            self._send_begin(begun)

    def pop(self) -> bool:
        """Send the end of this thread's newest range; return whether its start was seen."""
        stack = self._pushed.get(get_native_id())
        if not stack:
            return False
        self._send_end(stack.pop())
        return True

    def start(self, message: object, number: Any) -> None:
        """Record the start of a range with a number."""
        if isinstance(message, str):
            begun = self._started[number] = self._begun(message, number)
            self._send_begin(begun)

    def end(self, number: Any) -> None:
        """Send the end of a range with a number."""
        if not isinstance(number, int):
            return
        if ended := self._started.pop(number, None):
            self._send_end(ended)
        else:
            self.end_unnamed(number)

    def end_unnamed(self, number: Any = 0) -> None:
        """Send the end of a range that began unseen, at an unknown time."""
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
"""The process's source of NVTX marks."""
