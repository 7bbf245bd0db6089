"""Analysis of a saved trace, in a fresh interpreter with lower priority than the training."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from dynprof.captures.manifest import NOT_WRITTEN, SILENT, VERDICT
from dynprof.errors import CaptureError
from dynprof.extras import missing
from dynprof.runtime.side_process import SideProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from dynprof.journal.journal import Journal

SUCCEEDED = "analysed"
"""The last line that a successful analysis prints."""


def arguments_for(manifest: Manifest, *, analyse: bool) -> tuple[str, ...] | None:
    """Return the arguments for the analysis of a capture; None if it gets no analysis.

    Without a requested analysis, only the memory of the trace is drawn: if the config requests a
    memory snapshot and no device recorded its own.
    """
    if manifest.trace is None or manifest.backend == "npu":
        return None
    if analyse:
        return ()
    draws = manifest.request.config.get("memory_snapshot") and manifest.activities == ("CPU",)
    return ("--only", "memory") if draws else None


def begin_analysis(trace: Path | str, *arguments: str) -> SideProcess:
    """Start the analysis of a trace, by its path or URL; it outlives this process.

    Raises:
        OSError: No process can be started.
    """
    return SideProcess.begin("dynprof.analysis", str(trace), *arguments)


def analyse_now(trace: Path, arguments: tuple[str, ...]) -> None:
    """Analyse a trace and wait for the result.

    Args:
        trace: The trace.
        arguments: As :func:`arguments_for` returns them.

    Raises:
        CaptureError: The analysis failed; the trace is still there.
    """
    reason: str | None = missing("analysis", "the analysis")
    if not reason:
        reason = begin_analysis(trace, *arguments, "--nice", "0").why_failed(SUCCEEDED, wait=True)
    if reason:
        raise CaptureError(f"{trace} is saved, but could not be analysed: {reason}")


class _Pending(NamedTuple):
    """An analysis that waits or runs.

    Attributes:
        trace: The path or URL of the trace.
        arguments: As :func:`arguments_for` returns them.
        request: The number of its request.
        manifest: Where its manifest is, as the log names it.
        on_verdict: Called with the verdict.
    """

    trace: str
    arguments: tuple[str, ...]
    request: int
    manifest: str
    on_verdict: Callable[[str], object]

    @property
    def shown(self) -> str:
        """The trace with its folder, as the log names it."""
        return "/".join(self.trace.split("/")[-2:])


class Analyses:
    """The analyses of a session, one at a time: windows may come faster than analyses end.

    Args:
        journal: Logs how each analysis ended.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._running: tuple[_Pending, SideProcess] | None = None
        self._waiting: deque[_Pending] = deque()

    def begin(
        self,
        trace: str,
        arguments: tuple[str, ...],
        request: int,
        manifest: str,
        on_verdict: Callable[[str], object] = bool,
    ) -> None:
        """Begin an analysis, or queue it while another one runs.

        Args:
            trace: The path or URL of the trace.
            arguments: As :func:`arguments_for` returns them.
            request: The number of its request.
            manifest: Where its manifest is, as the log names it.
            on_verdict: Called with the verdict, if the analysis ends before this process.

        Raises:
            OSError: No process can be started.
        """
        pending = _Pending(trace, arguments, request, manifest, on_verdict)
        if text := missing("analysis", "the analysis"):
            self._failed(pending, text)
            return
        self._waiting.append(pending)
        self.update()

    def update(self) -> None:
        """Log the analysis that has ended, with the files that it left out, and begin the next.

        Files that no setting of the config requested are only counted.

        Raises:
            OSError: No process can be started.
        """
        if self._running:
            pending, process = self._running
            words = process.output()
            if words is None:
                return
            self._running = None
            *lines, last = words.split("\n")
            if last == SUCCEEDED:
                named = [line for line in lines if line.startswith(NOT_WRITTEN)]
                others = [
                    f"{line}; {pending.manifest} names them"
                    for line in lines
                    if line.endswith(SILENT)
                ]
                text = "\n".join([f"analysed {pending.shown}", *named, *others])
                self._journal.info(f"request {pending.request}: {text}")
                for line in lines:
                    if line.startswith(VERDICT):
                        pending.on_verdict(line.removeprefix(VERDICT))
            else:
                self._failed(pending, last)
        if self._waiting:
            self._begin_next()

    def end(self) -> None:
        """Begin all queued analyses, one after the other; they outlive this process.

        Raises:
            OSError: No process can be started.
        """
        waiting = list(self._waiting)
        self._waiting.clear()
        for arguments in dict.fromkeys(one.arguments for one in waiting):
            first, *more = [one.trace for one in waiting if one.arguments == arguments]
            begin_analysis(first, *more, *arguments)

    def _failed(self, pending: _Pending, why: str) -> None:
        text = f"{pending.shown} could not be analysed: {why}"
        self._journal.warning(f"request {pending.request}: {text}")

    def _begin_next(self) -> None:
        pending = self._waiting.popleft()
        self._running = pending, begin_analysis(pending.trace, *pending.arguments)
