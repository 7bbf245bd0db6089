"""Marks sent to NVTX as well, where Nsight and others record them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.marks.nvtx import nvtx_functions
from dynprof.marks.open_ranges import MOST_STARTED, forget_oldest
from dynprof.marks.sinks import SINKS, Range, Sink
from dynprof.process.warnings_to_script import warn_script
from dynprof.wall import StderrNotes, Wall

if TYPE_CHECKING:
    from collections.abc import Callable


class ToNvtx(Sink):
    """Sets each mark there too, and each range as one that may cross others.

    For torch's NVTX has no domains, in each of which ours nest. Nothing goes in a circle: what a
    window hears of NVTX comes to no sink of ``dynprof.mstx``, and it does not hear what is sent.

    Args:
        functions: Those that torch's module calls.
    """

    hears_begins = True

    def __init__(self, functions: Any) -> None:
        self._functions, self._wall = functions, Wall(StderrNotes())
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
        if len(self._numbers) > MOST_STARTED:  # a script may never end any
            forget_oldest(self._numbers)

    def _do(self, action: Callable[[], object]) -> None:
        self._wall.attempt("sending a mark to NVTX", action)


def _named(message: str, domain: str) -> str:
    return message if domain == "default" else f"{domain}: {message}"


def send_to_nvtx(*, on: bool) -> None:
    """Begin or end sending marks to NVTX; what hinders it is said to the script."""
    sending = [sink for sink in SINKS.on_streams if isinstance(sink, ToNvtx)]
    if not on:
        for sink in sending:
            SINKS.unplug(sink)
    elif not sending:
        functions = nvtx_functions()
        if hasattr(functions, "rangeStartA"):
            SINKS.plug(ToNvtx(functions))
        else:
            lacks = "this torch has no NVTX, which comes with CUDA"
            why = lacks if functions else "import torch before"
            warn_script(f"dynprof sends no marks to NVTX: {why}")
