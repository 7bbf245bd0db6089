"""All reasons that keep a request from opening a window at this step."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from dynprof.backends.base import Blocked
from dynprof.errors import Problem
from dynprof.requests.plan import disk_pointer, past_start
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from dynprof.windows.driver import UNENDED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.captures.exporter import Exporter
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.plan import Plan
    from dynprof.requests.request import Request
    from dynprof.windows.process_context import ProcessContext

MAX_FAILURES = 3
"""A backend that fails this many windows in a row is not used until the next edit."""
_RENUMBERED = "its steps were renumbered after the ranks had agreed on step {}, as its log says."


class Admission:
    """Decides at each step whether a waiting request may open.

    Args:
        process: This process.
        inbox: Has the running step, and the free space on the disk.
        exporter: May be saving.
    """

    def __init__(self, process: ProcessContext, inbox: Inbox, exporter: Exporter) -> None:
        self._process, self._inbox, self._exporter = process, inbox, exporter
        self._failures: Counter[str] = Counter()
        self._waited = (0, "")

    def reset_failures(self) -> None:
        """Use backends again that failed too often."""
        self._failures.clear()

    def note_failure(self, backend: str) -> None:
        """Count a window that this backend failed."""
        self._failures[backend] += 1

    def note_success(self, backend: str) -> None:
        """Reset the count of this backend: only failures in a row count."""
        self._failures.pop(backend, None)

    def is_due(self, request: Request) -> bool:
        """Return whether its step has come, or never will because steps were renumbered."""
        return self._inbox.step >= (request.plan.start_step or 0) or self._is_renumbered(request)

    def _is_renumbered(self, request: Request) -> bool:
        return request.agreed_in not in (None, self._inbox.numbering)

    def blocked_by(self, request: Request) -> Blocked | None:
        """Return what keeps a request from opening now; None if nothing does."""
        any_step = request.plan.start_step is None and not request.at_once
        reasons = chain(
            self._reasons_to_wait(),
            self._reasons_of_backend(request),
            map(_refused, self._reasons_to_refuse(request)),
        )
        return next((one for one in reasons if any_step or one.effect != "prefer wait"), None)

    def _reasons_to_wait(self) -> Iterator[Blocked]:
        if self._exporter.busy:
            yield Blocked("the last capture is being saved")
        if UNENDED.delay_next:
            yield Blocked("the thread of a discarded window has not ended a step since")

    def _reasons_of_backend(self, request: Request) -> Iterator[Blocked]:
        for one in self._process.backend(request.plan.backend).blocked_by(request.plan):
            if one.effect == "wait" and GRAPH_CAPTURES.under_way():
                self._waited = (request.number, one.reason)
            yield (
                _refused(Problem(f"{one.reason}.", "/backend")) if one.effect == "refused" else one
            )

    def refused_by(self, plan: Plan) -> str:
        """Return why the backend refuses a plan on any thread; empty if it does not."""
        reasons = self._process.backend(plan.backend).blocked_by(plan, elsewhere=True)
        return next((one.reason for one in reasons if one.effect == "refused"), "")

    def waited_for(self, request: Request) -> str:
        """Return the graph capture that a request had to wait for; empty if there was none."""
        number, capture = self._waited
        return capture if number == request.number else ""

    def _reasons_to_refuse(self, request: Request) -> Iterator[Problem]:
        """Yield problems that did not exist when the request was accepted."""
        least, free_mb = request.config.limits.min_free_disk_mb, self._inbox.free_disk_mb
        if self._is_renumbered(request):
            yield Problem(_RENUMBERED.format(request.plan.start_step))
        if least is not None and free_mb < least:
            text = (
                f"only {free_mb:,.0f} MB are free now where the capture would go, and "
                f"limits.min_free_disk_mb is {least:,.0f}."
            )
            yield Problem(text, disk_pointer(request.config))
        if self._failures[request.plan.backend] >= MAX_FAILURES:
            text = f"it failed in {MAX_FAILURES} windows in a row; the next save tries it again."
            yield Problem(text, "/backend")
        # A delay by a graph capture is accepted, unless other ranks have opened in the meantime.
        may_be_late = self.waited_for(request) and request.agreed_in is None
        step = 0 if may_be_late else self._inbox.step
        is_agreed = request.agreed_in is not None
        past = past_start(request.config, step - 1, is_agreed=is_agreed)
        if request.plan.start_step is not None and past:
            yield past


def _refused(problem: Problem) -> Blocked:
    return Blocked(str(problem), "refused")
