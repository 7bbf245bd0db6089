"""The status file of one process; it detects two processes with the same rank."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError, reason
from dynprof.journal.status import Status, load_status
from dynprof.runtime.layout import HISTORY_SUFFIX
from dynprof.runtime.output import remove, write_atomic
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.runtime.layout import Layout


class StatusFile:
    """Writes ``status/rank_<r>.json``, or another name if another live process writes that file.

    Args:
        layout: Where to write.
        warn: Called with a warning for the operator, once for each change.

    Attributes:
        path: The file that was written last; None if there is none.
    """

    def __init__(self, layout: Layout, warn: Callable[[str], None]) -> None:
        self._layout, self._warn = layout, warn
        self.path: Path | None = None
        self._trouble: str | None = None
        self._conflict = ""
        self._checked_former = False

    def write(self, status: Status) -> None:
        """Write the status; warn if that fails."""
        try:
            self._write(status)
            self._trouble = None
        except OSError as error:
            if error.strerror != self._trouble:  # its text has the name of a temporary file
                self._trouble = error.strerror
                self._warn(f"the status file cannot be written: {reason(error)}")

    def remove(self) -> None:
        """Remove the file if it is still this process's own."""
        path, self.path = self.path, None
        if path is None:
            return
        with contextlib.suppress(OSError, CaptureError):
            if load_status(path).pid == self._layout.pid:
                remove(path)

    def move(self, layout: Layout) -> None:
        """Write for another rank from now on."""
        self.remove()
        self._layout = layout

    def _write(self, status: Status) -> None:
        path = self._choose(status)
        if not self._checked_former:
            self._checked_former = True
            if lost := _lost_request(self._layout, status.heartbeat):
                self._warn(lost)
        if self.path == self._layout.duplicate_status != path:
            self.remove()
        if path.parent.parent.exists():  # do not create a removed directory again
            self._layout.make_dir(path.parent)
        write_atomic(path, json.dumps(dataclasses.asdict(status), indent=2) + "\n")
        self.path = path

    def _choose(self, status: Status) -> Path:
        """Return the path of the rank's file, or another one if a live process writes that."""
        conflict = _conflict(self._layout, status.heartbeat)
        if conflict != self._conflict:
            self._warn(conflict or f"no other process is {status.named} any more")
        self._conflict = conflict
        return self._layout.duplicate_status if conflict else self._layout.status


def remove_stale(layout: Layout, now_s: float) -> None:
    """Remove status files with other names that ended processes have left."""
    for path in layout.status.parent.glob("*rank_*.*_*.json"):
        with contextlib.suppress(OSError, CaptureError):
            if not load_status(path).is_live(now_s):
                remove(path)
                remove(path.with_suffix(HISTORY_SUFFIX))


def _lost_request(layout: Layout, now_s: float) -> str:
    """Return what the previous, killed process of this rank has lost; empty for nothing.

    A capture that it was saving has a manifest that says so.
    """
    with contextlib.suppress(CaptureError):
        former = load_status(layout.status)
        if former.state not in ("waiting", "warmup", "recording") or former.is_live(now_s):
            return ""
        what = "with a waiting request"
        if former.progress:
            done, asked = former.progress
            what = f"inside a window, last seen at {done:,} of {counted(asked, 'step')}"
        return (
            f"process {former.pid} on {former.host}, which was {former.named} here before, was "
            f"killed {what}; nothing of that is left, save the config again"
        )
    return ""


def _conflict(layout: Layout, now_s: float) -> str:
    """Return a warning if another live process writes the rank's status file; else empty."""
    try:
        other = load_status(layout.status)
    except CaptureError:
        return ""
    if (other.host, other.pid) == (layout.host, layout.pid) or not other.is_live(now_s):
        return ""
    return (
        f"process {other.pid} on {other.host} is {other.named} in this directory too: two "
        "jobs share it, or their ranks are unknown; see init(rank=...)"
    )
