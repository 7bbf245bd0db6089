"""What follows a saved capture: its cost is counted, its analysis begun, and operators are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.captures.analysis_start import Analyses, arguments_for

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.wall import Wall
    from dynprof.windows.cost_account import CostAccount, Span


class SavedCaptures:
    """Hears of each capture from the exporter, on its thread.

    Args:
        root: The directory that is watched; paths in the log begin there.
        inbox: Is told, so that the next step boundary is noted.
        journal: The log.
        wall: Keeps what follows apart.
        costs: What captures cost.
        analyses: Those that were started.
    """

    def __init__(
        self,
        root: Path,
        inbox: Inbox,
        journal: Journal,
        wall: Wall,
        costs: CostAccount,
        analyses: Analyses,
    ) -> None:
        self._root, self._inbox, self._costs = root, inbox, costs
        self._journal, self._wall, self._analyses = journal, wall, analyses

    def take(self, span: Span, path: Path, manifest: Manifest) -> None:
        """Hear of one.

        Args:
            span: When its window was open.
            path: Where its manifest lies, or was to lie.
            manifest: What it says.
        """
        self._wall.attempt("counting the cost", lambda: self._costs.settle(final=True))
        kept = manifest.lies_at(path)
        self._costs.window_saved(path if kept else None, manifest, span)
        self._inbox.knock()
        self._begin_analysis(path.parent.parent, manifest)
        self._tell(path.parent.parent, manifest, self._shown(path) if kept else None)

    def _begin_analysis(self, folder: Path, manifest: Manifest) -> None:
        wanted = arguments_for(manifest, analyse=bool(manifest.request.config.get("analyse")))
        if wanted is not None:
            trace = folder / str(manifest.trace)
            self._wall.attempt("analysis", lambda: self._analyses.begin(trace, wanted))

    def _tell(self, folder: Path, manifest: Manifest, capture: str | None) -> None:
        if capture:
            self._journal.remember(last_capture=capture)
        number, trace = manifest.request.number, manifest.trace
        if trace:
            text = f"saved {self._shown(folder / trace)} "
            text += f"({manifest.trace_bytes / 1e3:,.0f} kB) in {manifest.cost.save_ms:.0f} ms"
            self._journal.tell(number, "saved", "\n".join([text, *manifest.lost]), capture=capture)
        else:
            text = f"no trace; {manifest.reason}" + (f"; see {capture}" if capture else "")
            self._journal.tell(number, "failed", text, capture=capture)

    def _shown(self, path: Path) -> str:
        """Return a path as the log has it."""
        return str(path.relative_to(self._root) if path.is_relative_to(self._root) else path)
