"""Marks that name a device's stream: also set on its track, where the window records a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dynprof.backends.collectors.base import Collector
from dynprof.marks.sinks import SINKS, Range, Sink
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from dynprof.runtime.warnings_to_script import warn_script

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.backends.collectors.marks import Domains

HOST_ONLY = "marks that name a stream are on the host's track only"
NO_DEVICE = f"{HOST_ONLY}: no window has recorded a CUDA device"
IN_CAPTURE = f"{HOST_ONLY} while a graph is being captured"
BEGIN, END = " (begin)", " (end)"
"""Suffixes that name the two ends of a range on a device."""
_warned: set[str] = set()
"""Warnings that this process has given."""


class Device(Protocol):
    """A device whose streams can be marked; no method may wait for the device."""

    def stream(self, given: object) -> object | None:
        """Return the stream that a script has given; None where it belongs to another device."""

    def is_capturing(self, stream: object) -> bool:
        """Return whether work put on a stream becomes part of a graph."""

    def mark(self, message: str, stream: object) -> None:
        """Put a mark on a stream, after the work queued so far."""


class StreamMarks(Collector, Sink):
    """Sets marks on the device; where that is impossible, warns once in the process.

    Args:
        device: The device that the window records; None for none.
        domains: Domains to keep.
    """

    wants_begins = True  # also without a device: a range may never end, so its begin must warn
    only_streams = True

    def __init__(self, device: Device | None, domains: Domains) -> None:
        self._device, self._domains = device, domains
        self._boundary = ErrorBoundary(StderrNotes())
        self._texts: list[str] = []

    def start(self) -> None:
        """Start setting marks."""
        SINKS.add(self)

    def stop(self) -> None:
        """Stop setting marks."""
        SINKS.remove(self)

    def abandon(self) -> None:
        """Do nothing: neither a device nor a sink survives a fork."""

    def mark(self, message: str, domain: str, stream: object = None) -> None:
        """Mark a moment on the stream."""
        self._set(message, domain, stream)

    def begin(self, begun: Range) -> None:
        """Mark where a range begins."""
        self._set(begun.message + BEGIN, begun.domain, begun.stream)

    def end(self, ended: Range) -> None:
        """Mark where a range ends."""
        self._set(ended.message + END, ended.domain, ended.stream)

    def save(self, stem: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Write nothing; return the warnings that the script got."""
        return tuple(self._texts)

    def _set(self, message: str, domain: str, stream: object) -> None:
        none = stream is None or (isinstance(stream, int) and not stream)
        if none or not self._domains[domain]:
            return
        failed = self._boundary.attempt(
            "marking a stream", lambda: self._mark_on_device(message, stream)
        )
        if failed:
            self.stop()

    def _mark_on_device(self, message: str, given: object) -> None:
        if self._device is None:
            self._warn(NO_DEVICE)
            return
        stream = self._device.stream(given)
        if stream is None:
            kind = type(given).__name__
            self._warn(
                f"{HOST_ONLY}: the stream is a {kind}; give a torch.cuda.Stream or its handle"
            )
        elif GRAPH_CAPTURES.under_way() or self._device.is_capturing(stream):
            self._warn(IN_CAPTURE)
        else:
            self._device.mark(message, stream)

    def _warn(self, text: str) -> None:
        if warn_once(text):
            self._texts.append(text)


def warn_once(text: str) -> bool:
    """Warn the script, once in the process; return whether this was the first time."""
    if text in _warned:
        return False
    _warned.add(text)
    warn_script(f"dynprof.mstx: {text}")
    return True
