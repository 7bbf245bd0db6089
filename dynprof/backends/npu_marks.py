"""Marks of ``dynprof.mstx`` handed on to ``torch_npu.npu.mstx``, which an NPU's profiler records.

The vendor's profiler knows no others. Its domains, its tables and its side of the device come so to
scripts that import ``dynprof.mstx``. Older versions know no domains, and moments without a stream.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

from dynprof.companions.stream_marks import HOST, say_once
from dynprof.marks.open_ranges import MOST_STARTED, all_open, forget_oldest
from dynprof.marks.sinks import SINKS, Range, Sink, is_short
from dynprof.wall import StderrNotes, Wall

if TYPE_CHECKING:
    from collections.abc import Collection

    from dynprof.marks.sources import Source


class VendorMarks(Sink):
    """Sets each mark and range there too while an NPU records; ranges that are open begin with it.

    Args:
        device: ``torch_npu.npu``.
        sources: What else is handed on.
    """

    hears_begins = True

    def __init__(self, device: Any, sources: Collection[Source]) -> None:
        self._mstx, self._streams = device.mstx, getattr(device, "streams", None)
        self._sources, self._wall = sources, Wall(StderrNotes())
        self._begun: dict[int, tuple[Range, int]] = {}
        self._known = {
            name: inspect.signature(getattr(self._mstx, name)).parameters
            for name in ("mark", "range_start", "range_end")
        }

    def start(self) -> None:
        """Hand on what is marked from now on; once, however often it is called."""
        if self in SINKS.on_streams:
            return
        SINKS.plug(self)
        for source in self._sources:
            source.plug(self)
        for begun in all_open():
            if is_short(begun.message):
                self.begin(begun)

    def stop(self) -> None:
        """End what is open there, and hand on no more; also twice."""
        SINKS.unplug(self)
        for source in self._sources:
            source.unplug(self)
        while self._begun:
            with contextlib.suppress(KeyError):  # another thread ends one
                begun, _ = next(iter(self._begun.copy().values()))
                self.end(begun)

    def mark(self, message: str, domain: str, stream: object = None) -> None:
        """Set it there."""
        self._call("mark", message, stream=self._stream(stream), domain=domain)

    def begin(self, begun: Range) -> None:
        """Begin it there, unless that is done."""
        if id(begun) in self._begun:
            return
        stream = self._stream(begun.stream)
        number = self._call("range_start", begun.message, stream=stream, domain=begun.domain)
        if number:
            self._begun[id(begun)] = (begun, number)
        if len(self._begun) > MOST_STARTED:  # a script may never end any
            forget_oldest(self._begun)

    def end(self, ended: Range) -> None:
        """End it there, if it was begun there."""
        _, number = self._begun.pop(id(ended), (None, None))
        if number is not None:
            self._call("range_end", number, domain=ended.domain)

    def _stream(self, stream: object) -> object:
        """Return a stream of the vendor's; None for others, for which it would lose the mark."""
        kind = getattr(self._streams, "Stream", None)
        if stream is None or (isinstance(stream, int) and not stream):
            return None
        if kind and isinstance(stream, kind):
            return stream
        text = f"{HOST} where that is a {type(stream).__name__}; give a torch_npu.npu.Stream"
        self._wall.attempt("a warning", lambda: say_once(text))
        return None

    def _call(self, name: str, first: object, **more: object) -> Any:
        """Call a function with what its version knows; what it raises costs the mark."""
        known = {key: value for key, value in more.items() if key in self._known[name]}
        found: list[Any] = []
        function = getattr(self._mstx, name)
        self._wall.attempt(
            f"torch_npu.npu.mstx.{name}", lambda: found.append(function(first, **known))
        )
        return found[0] if found else None
