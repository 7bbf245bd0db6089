"""The work after a capture is saved: send it on, count its cost, analyse it, log it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.captures.analysis_start import Analyses, arguments_for
from dynprof.captures.baselines import remove_old_baselines
from dynprof.captures.deliveries import Deliveries, DeliveryTask
from dynprof.runtime.destination import is_url

if TYPE_CHECKING:
    from dynprof.captures.deliveries import Delivery
    from dynprof.captures.manifest import Manifest
    from dynprof.journal.journal import Journal
    from dynprof.requests.edit_detection import Repetition
    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.windows.cost_account import CostAccount, Span


class SavedCaptures:
    """Handles each saved capture, on the exporter's thread.

    Args:
        root: The watched directory; paths in the log are relative to it.
        inbox: Woken, so that the next step boundary is noted.
        journal: The log.
        boundary: Separates the failures of the parts.
        costs: The costs of captures.
        analyses: The analyses that were started.
        deliveries: The deliveries under way.
        repetition: The request for baselines.
    """

    def __init__(
        self,
        root: Path,
        inbox: Inbox,
        journal: Journal,
        boundary: ErrorBoundary,
        costs: CostAccount,
        analyses: Analyses,
        deliveries: Deliveries,
        repetition: Repetition,
    ) -> None:
        self._root, self._inbox, self._costs = root, inbox, costs
        self._journal, self._boundary, self._analyses = journal, boundary, analyses
        self._deliveries, self._repetition = deliveries, repetition

    def handle(
        self, span: Span, delivery: Delivery, early_reason: str, path: Path, manifest: Manifest
    ) -> None:
        """Handle a saved capture.

        Args:
            span: When its window was open.
            delivery: How it gets to its place.
            early_reason: Why its window closed early, which is logged already; empty if it did not.
            path: The path of its manifest, which may not have been written.
            manifest: The manifest.
        """
        self._boundary.attempt(
            "counting the cost", lambda: self._costs.complete_pending(final=True)
        )
        kept = manifest.is_written_at(path)
        self._costs.window_saved(
            self._manifest_at_target(path, delivery) if kept else None, manifest, span
        )
        self._inbox.wake()
        self._warn_of_cut(early_reason, manifest)
        if not kept or delivery.destination.is_direct:
            self._complete(path.parent.parent, manifest, self._shown(path) if kept else None)
        elif self._boundary.attempt(
            "sending the capture", lambda: self._send(delivery, path, manifest)
        ):
            self._complete(path.parent.parent, manifest, self._shown(path))

    def _warn_of_cut(self, early_reason: str, manifest: Manifest) -> None:
        """Log the parts that saving found missing; a lost trace is logged elsewhere."""
        cut = manifest.reason.removeprefix(early_reason).removeprefix("; ")
        if manifest.trace and cut:
            text = f"request {manifest.request.number}: its capture is not complete: {cut}"
            self._journal.warning(text)

    @staticmethod
    def _manifest_at_target(path: Path, delivery: Delivery) -> Path | None:
        """Return the path of the manifest for later measurements; None behind a URL."""
        folder = delivery.destination.folder(path.parent.parent.name)
        return None if isinstance(folder, str) else folder / path.parent.name / path.name

    def _send(self, delivery: Delivery, path: Path, manifest: Manifest) -> None:
        number, here = manifest.request.number, path.parent.parent
        order = delivery.order(path, manifest)
        text = f"put together in {here}; goes to {order.target}"
        if (wait_s := delivery.wait_s()) >= 1:
            text += f" after {wait_s:,.0f} s: the ranks take turns, storage.spread_s"
        self._journal.report(number, "saving", text)

        def report_failure(why: str) -> None:
            text = f"its capture is not in {order.target} yet: {why}"
            text += f"; dynprof retries for {order.retry_s:g} s"
            self._journal.report(number, "saving", text, loud=True)

        def end(arrived: str, why: str) -> None:
            if arrived:
                folder = order.target if is_url(arrived) else Path(order.target)
                self._complete(folder, manifest, self._shown(arrived))
            else:
                text = f"its capture is not in {order.target}, and is in {here}: {why}"
                self._journal.set_status(last_error=f"request {number}: {text}")
                self._journal.warning(f"request {number}: {text}")
                self._complete(here, manifest, self._shown(path))

        self._deliveries.submit(DeliveryTask(order, delivery.wait_s, report_failure, end))

    def _complete(self, folder: Path | str, manifest: Manifest, capture: str | None) -> None:
        trace = f"{folder}/{manifest.trace}" if manifest.trace else None
        facts = self._facts(trace, manifest, capture)
        if trace:
            self._begin_analysis(trace, manifest, capture or "its manifest", facts)
        self._report(trace, manifest, capture, facts)
        if manifest.is_baseline and isinstance(folder, Path):
            self._boundary.attempt(
                "removing old baselines", lambda: self._remove_old_baselines(folder, manifest)
            )

    def _remove_old_baselines(self, folder: Path, manifest: Manifest) -> None:
        self._repetition.kept, removed = remove_old_baselines(folder.parent, manifest)
        for one in removed:
            named = self._shown(one.folder) + ("" if one.trace else ", which had no trace")
            self._journal.info(f"removed the baseline {named}; newer ones are kept")

    def _facts(self, trace: str | None, manifest: Manifest, capture: str | None) -> dict[str, Any]:
        """Return what events say about a capture."""
        is_path = capture and not is_url(capture)
        return {
            "step": manifest.steps.last,
            "request": manifest.request.number,
            "capture": str(self._root / capture) if capture and is_path else capture,
            "trace": trace,
            "first_step": manifest.steps.first,
            "last_step": manifest.steps.last,
        }

    def _begin_analysis(
        self, trace: str, manifest: Manifest, capture: str, facts: dict[str, Any]
    ) -> None:
        number = manifest.request.number
        report = self._journal.events.report

        def report_verdict(verdict: str) -> None:
            report("analysed", verdict, verdict=verdict, **facts)

        wanted = arguments_for(manifest, analyse=bool(manifest.request.config.get("analyse")))
        if wanted is not None:
            self._boundary.attempt(
                "analysis",
                lambda: self._analyses.begin(trace, wanted, number, capture, report_verdict),
            )

    def _report(
        self,
        trace: str | None,
        manifest: Manifest,
        capture: str | None,
        facts: dict[str, Any],
    ) -> None:
        if capture:
            self._journal.set_status(last_capture=capture)
        number = manifest.request.number
        if trace:
            text = f"saved {self._shown(trace)} "
            text += f"({manifest.trace_bytes / 1e3:,.0f} kB) in {manifest.cost.save_ms:.0f} ms"
            text = "\n".join([text, *manifest.lost])
            cut = "" if manifest.complete else manifest.reason
            self._journal.report(number, "saved", text, capture=capture, cut=cut)
            self._journal.events.report("captured", text, **facts)
        else:
            text = f"no trace; {manifest.reason}" + (f"; see {capture}" if capture else "")
            self._journal.report(number, "failed", text, capture=capture)

    def _shown(self, place: Path | str) -> str:
        """Return a path as the log shows it."""
        if isinstance(place, str) and is_url(place):
            return place
        path = Path(place)
        return str(path.relative_to(self._root) if path.is_relative_to(self._root) else path)
