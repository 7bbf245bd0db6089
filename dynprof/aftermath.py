"""Analysis of a saved trace, in a fresh interpreter that gives way to the training."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.capture import Manifest
    from dynprof.journal import Journal

MAX_WORDS = 2000
"""Characters kept of what a failing analysis says."""


def wants_memory_timeline(manifest: Manifest) -> bool:
    """Return whether a capture's memory must be drawn from its trace: no device told its own."""
    asked = bool(manifest.request.config.get("memory_snapshot"))
    return asked and manifest.trace is not None and manifest.activities == ("CPU",)


@dataclass
class Aftermath:
    """An analysis that is running.

    Attributes:
        trace: What is analysed.
    """

    trace: Path
    _process: subprocess.Popen[bytes]
    _words: BinaryIO

    @classmethod
    def begin(cls, trace: Path, *arguments: str) -> Aftermath:
        """Start one; it goes on when this process ends.

        Raises:
            OSError: No process can be started.
        """
        words = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - closed in outcome()
        process = subprocess.Popen(
            [sys.executable, "-m", "dynprof.analysis", str(trace), *arguments],
            env={**os.environ, "DYNPROF_DISABLE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            start_new_session=True,
        )
        return cls(trace, process, words)

    def outcome(self, *, wait: bool = False) -> str | None:
        """Return why it failed, nothing where it did not, None while it is running."""
        code = self._process.wait() if wait else self._process.poll()
        if code is None:
            return None
        self._words.seek(0)
        said = self._words.read()[-MAX_WORDS:].decode(errors="replace").strip()
        self._words.close()
        return "" if code == 0 else said.rpartition("\n")[2] or f"it ended with code {code}"


def draw_memory(trace: Path) -> None:
    """Draw the memory of a trace now, and wait for it.

    Raises:
        CaptureError: It could not be done.
    """
    if reason := Aftermath.begin(trace, "--only", "memory").outcome(wait=True):
        raise CaptureError(f"the memory timeline could not be made: {reason}")


class Analyses:
    """Those that a session has begun.

    Args:
        journal: Where their ends are written down.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._running: list[Aftermath] = []

    def begin(self, trace: Path) -> None:
        """Begin one.

        Raises:
            OSError: No process can be started.
        """
        self._running.append(Aftermath.begin(trace, "--only", "memory"))

    def look(self) -> None:
        """Write down those that have ended."""
        for aftermath in list(self._running):
            reason = aftermath.outcome()
            if reason is None:
                continue
            self._running.remove(aftermath)
            shown = f"{aftermath.trace.parent.name}/{aftermath.trace.name}"
            if reason:
                self._journal.warning(f"{shown} could not be analysed: {reason}")
            else:
                self._journal.info(f"analysed {shown}")
