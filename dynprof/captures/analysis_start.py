"""Analysis of a saved trace, in a fresh interpreter that gives way to the training."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import tempfile
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from dynprof.errors import CaptureError
from dynprof.process.fresh_interpreter import command, environment

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from dynprof.journal.journal import Journal

WHOLE = "analysed"
"""The last word of one that succeeded; a job that ignores SIGCHLD is told no exit code."""
MAX_WORDS = 2000
"""Characters kept of what a failing analysis says."""


def arguments_for(manifest: Manifest, *, analyse: bool) -> tuple[str, ...] | None:
    """Return how a capture is to be analysed; None where it is not.

    Its memory is drawn from the trace where it was asked for and no device told its own.
    """
    if manifest.trace is None or manifest.backend == "npu":
        return None
    if analyse:
        return ()
    draws = manifest.request.config.get("memory_snapshot") and manifest.activities == ("CPU",)
    return ("--only", "memory") if draws else None


_unasked: list[StartedAnalysis] = []
"""Those whose end nobody has seen: kept until the process's, or Python warns of what they hold."""


@dataclass(eq=False)
class StartedAnalysis:
    """An analysis that is running.

    Attributes:
        trace: What is analysed.
    """

    trace: Path
    _process: subprocess.Popen[bytes]
    _words: BinaryIO

    @classmethod
    def begin(cls, trace: Path, *arguments: str) -> StartedAnalysis:
        """Start one; it goes on when this process ends.

        Raises:
            OSError: No process can be started.
        """
        with contextlib.ExitStack() as held:
            words = cast("BinaryIO", held.enter_context(tempfile.TemporaryFile()))
            process = subprocess.Popen(
                command("dynprof.analysis", str(trace), *arguments),
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                start_new_session=True,
            )
            held.pop_all()
        started = cls(trace, process, words)
        _unasked.append(started)
        return started

    def outcome(self, *, wait: bool = False) -> str | None:
        """Return why it failed, nothing where it did not, None while it is running."""
        code = self._process.wait() if wait else self._process.poll()
        if code is None:
            return None
        self._words.seek(0)
        said = self._words.read()[-MAX_WORDS:].decode(errors="replace").strip()
        self._words.close()
        _unasked.remove(self)
        last = said.rpartition("\n")[2]
        return "" if last == WHOLE else last or f"it ended with code {code}"

    def let_go(self) -> None:
        """Ask for its end no more; it goes on."""
        self._words.close()
        self._process.returncode = 0  # else the interpreter warns that it runs


@atexit.register
def _let_all_go() -> None:
    """Come after the ends of sessions, which are registered later."""
    for started in _unasked:
        started.let_go()


def analyse_now(trace: Path, arguments: tuple[str, ...]) -> None:
    """Analyse a trace, and wait for it.

    Args:
        trace: The trace.
        arguments: As :func:`arguments_for` returns them.

    Raises:
        CaptureError: It could not be done.
    """
    if reason := StartedAnalysis.begin(trace, *arguments, "--nice", "0").outcome(wait=True):
        raise CaptureError(f"{trace} could not be analysed: {reason}")


class Analyses:
    """Those of a session, one at a time: windows may come faster than they are analysed.

    Args:
        journal: Where their ends are written down.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._running: StartedAnalysis | None = None
        self._waiting: deque[tuple[Path, tuple[str, ...]]] = deque()

    def begin(self, trace: Path, arguments: tuple[str, ...]) -> None:
        """Begin one, or let it wait for its turn.

        Raises:
            OSError: No process can be started.
        """
        self._waiting.append((trace, arguments))
        self.look()

    def look(self) -> None:
        """Write down the one that has ended, and begin the next.

        Raises:
            OSError: No process can be started.
        """
        reason = self._running.outcome() if self._running else None
        if self._running and reason is None:
            return
        if self._running:
            trace = self._running.trace
            shown, self._running = f"{trace.parent.name}/{trace.name}", None
            if reason:
                self._journal.warning(f"{shown} could not be analysed: {reason}")
            else:
                self._journal.info(f"analysed {shown}")
        if self._waiting:
            self._begin_next()

    def end(self) -> None:
        """Begin all that wait, one after the other: they go on when this process ends.

        Raises:
            OSError: No process can be started.
        """
        waiting = list(self._waiting)
        self._waiting.clear()
        for asked in dict.fromkeys(arguments for _, arguments in waiting):
            first, *more = [trace for trace, arguments in waiting if arguments == asked]
            StartedAnalysis.begin(first, *map(str, more), *asked)

    def _begin_next(self) -> None:
        trace, arguments = self._waiting.popleft()
        self._running = StartedAnalysis.begin(trace, *arguments)
