"""Whether a request may open a window at this step, has to wait, or comes too late."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dynprof.errors import Problem
from dynprof.process.graph_captures import GRAPH_CAPTURES
from dynprof.requests.plan import blamed_for_disk, past_start

if TYPE_CHECKING:
    from dynprof.captures.exporter import Exporter
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.request import Request
    from dynprof.windows.this_process import ThisProcess
    from dynprof.windows.unended_recordings import UnendedRecordings

MAX_FAILURES = 3
"""A backend that failed so many windows in a row rests until the next edit."""
_ANEW = "its steps were numbered anew after the ranks had agreed on step {}, as its log says."


class Admission:
    """Asked at each step while a request waits.

    Args:
        process: This process.
        inbox: The step that is running, and what is known of the disk.
        exporter: May be saving.
        unended: Recordings that have not been ended yet.
    """

    def __init__(
        self, process: ThisProcess, inbox: Inbox, exporter: Exporter, unended: UnendedRecordings
    ) -> None:
        self._process, self._inbox = process, inbox
        self._exporter, self._unended = exporter, unended
        self._failures: Counter[str] = Counter()
        self._waited = (0, "")

    def forgive(self) -> None:
        """Let backends that were put aside try again."""
        self._failures.clear()

    def note_failure(self, backend: str) -> None:
        """Count a window that this backend failed at."""
        self._failures[backend] += 1

    def note_success(self, backend: str) -> None:
        """Note that this backend works: only failures in a row count."""
        self._failures.pop(backend, None)

    def is_due(self, request: Request) -> bool:
        """Return whether its step has come, or will not: that may have another number now."""
        return self._inbox.step >= (request.plan.start_step or 0) or self._is_numbered_anew(request)

    def _is_numbered_anew(self, request: Request) -> bool:
        return request.agreed_in not in (None, self._inbox.numbering)

    def hindrance(self, request: Request) -> str | None:
        """Return what a request has to wait for now; None where nothing."""
        if self._exporter.busy:
            return "the last capture is being saved"
        if self._unended.hinder():
            return "the thread of a window that was given up has not come by since"
        backend = self._process.backend(request.plan.backend)
        if obstacle := backend.obstacle(request.plan):
            if GRAPH_CAPTURES.under_way():
                self._waited = (request.number, obstacle)
            return obstacle
        free = request.plan.start_step is None and not request.at_once
        return backend.hesitation(request.plan.activities) if free else None

    def rival(self, backend: str) -> str:
        """Return which profiler of the script's keeps one from recording now; empty for none."""
        return self._process.backend(backend).rival() or ""

    def waited_for(self, request: Request) -> str:
        """Return which graph capture a request had to wait for; empty where for none."""
        number, capture = self._waited
        return capture if number == request.number else ""

    def refusal(self, request: Request) -> Problem | None:
        """Return why a request that was accepted can no longer be served; None where it can."""
        failures, inbox = self._failures[request.plan.backend], self._inbox
        if self._is_numbered_anew(request):
            return Problem(_ANEW.format(request.plan.start_step))
        # A graph capture is no reason to be too late, but where others have opened meanwhile.
        may_be_late = self.waited_for(request) and request.agreed_in is None
        step = 0 if may_be_late else inbox.step
        return _why_too_late(request, step, inbox.free_disk_mb, failures)


def _why_too_late(
    request: Request, step: int, free_disk_mb: float, failures: int
) -> Problem | None:
    """Return what was fine when the request was accepted, but no longer is.

    Args:
        request: What would open.
        step: The step that begins.
        free_disk_mb: What is free where the capture would go.
        failures: How many windows of its backend failed in a row.
    """
    least = request.config.limits.min_free_disk_mb
    if least is not None and free_disk_mb < least:
        text = (
            f"only {free_disk_mb:,.0f} MB are free now where the capture would go, and "
            f"limits.min_free_disk_mb asks for {least:,.0f}."
        )
        return Problem(text, blamed_for_disk(request.config))
    if failures >= MAX_FAILURES:
        text = f"it failed {MAX_FAILURES} windows in a row and rests until the next edit."
        return Problem(text, "/backend")
    if request.plan.start_step is None:
        return None
    return past_start(request.config, step - 1)
