"""A closed window goes to the exporter, with the manifest that is known by then."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dynprof.captures.exporter import Export
from dynprof.delivery.order import delivery_of
from dynprof.files.layout import window_dir_name
from dynprof.windows.cost_account import Span
from dynprof.windows.window_manifest import window_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.backends import Recording
    from dynprof.captures.exporter import Exporter
    from dynprof.captures.manifest import Manifest
    from dynprof.delivery.order import Delivery
    from dynprof.requests.inbox import Inbox
    from dynprof.windows.open_window import OpenWindow
    from dynprof.windows.this_process import ThisProcess

    OnSaved = Callable[[Span, Delivery, str, Path, Manifest], None]


class Handover:
    """Makes an export of each closed window, also of one that kept nothing.

    Args:
        process: This process.
        inbox: The step that is running.
        exporter: Takes it.
        on_saved: Called by the exporter with the time that the window was open, how its capture
            gets to its place, why it was closed early, the path of its manifest and the manifest.
    """

    def __init__(
        self,
        process: ThisProcess,
        inbox: Inbox,
        exporter: Exporter,
        on_saved: OnSaved,
    ) -> None:
        self._process, self._inbox = process, inbox
        self._exporter, self._on_saved = exporter, on_saved

    def submit(
        self, current: OpenWindow, recording: Recording | None, *, reason: str, close_ms: float
    ) -> None:
        """Hand a window over.

        Args:
            current: The window.
            recording: What it recorded; None where that is lost.
            reason: Why it is not complete; empty where it is.
            close_ms: Time that closing took.
        """
        clock, layout = self._process.clock, self._process.layout
        wall_s = clock.wall_s()
        manifest = window_manifest(
            current, self._process, reason=reason, close_ms=close_ms, closed_wall_s=wall_s
        )
        request, window = current.request, current.window
        delivery = delivery_of(request.config, layout, self._process.rank)
        span = Span(current.opened_s, current.opened_step, clock.now_s(), self._inbox.step)
        parent = delivery.destination.workshop
        export = Export(
            recording=recording,
            manifest=manifest,
            folder=parent / window_dir_name(window.first, window.last, request.edited_at_s),
            trace_name=layout.trace_name(wall_s, current.backend.trace_suffix),
            layout=layout,
            least_free_mb=request.config.limits.min_free_disk_mb,
            on_end=functools.partial(self._on_saved, span, delivery, reason),
            wait_s=delivery.wait_s if delivery.destination.is_direct else None,
        )
        self._exporter.submit(export)
        current.window.release()  # the exporter has it
