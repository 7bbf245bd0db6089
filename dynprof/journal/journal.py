"""The maintenance log and the status file of one process.

Whoever has something to say only puts it into a queue; one thread writes. So a slow or broken
disk never holds up the training loop. That thread also ticks once a second, for
whoever has something to look after.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import queue
import threading
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.journal.edit_outcomes import EditOutcomes
from dynprof.journal.status import HEARTBEAT_S
from dynprof.journal.status_file import StatusFile
from dynprof.runtime.error_boundary import ErrorBoundary
from dynprof.runtime.layout import Layout
from dynprof.runtime.output import open_to_append, rename
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.journal.edit_outcomes import Outcome
    from dynprof.journal.status import Status

TICK_S = 1.0
"""Between two looks at the step counter."""
LOG_BYTES = 2_000_000
LOG_FILES = 3
"""The one that is written among them."""

_LOUD = ("refused", "failed", "superseded", "not served")
"""Outcomes of which somebody will want to hear."""


class Journal:
    """Writes log and status from a thread of its own.

    Args:
        layout: Where to.
        snapshot: Returns the status of now; called by the thread.
        on_tick: Called by the thread about once a second.

    Attributes:
        status_fields: Fields of the status that stay as they were last told.
        outcomes: What became of each edit.
    """

    def __init__(
        self, layout: Layout, snapshot: Callable[[], Status], on_tick: Callable[[], None]
    ) -> None:
        self.status_fields: dict[str, Any] = {}
        self.outcomes = EditOutcomes()
        self._boundary = ErrorBoundary(self)
        self._status_lock = threading.RLock()  # a signal handler may call start() while it is held
        self._layout, self._snapshot, self._on_tick = layout, snapshot, on_tick
        self._lines: queue.SimpleQueue[logging.LogRecord | Layout | None] = queue.SimpleQueue()
        self._status_file = StatusFile(layout, self.warning)
        self._written: Status | None = None
        self._handler: logging.Handler | None = None
        self._thread = own_thread(self._run, "dynprof-journal")

    def start(self) -> None:
        """Open the log and begin to write.

        Raises:
            OSError: The directories cannot be made.
        """
        self._layout.make_dir(self._layout.log.parent)
        self._layout.make_dir(self._layout.status.parent)
        self._open()
        self._thread.start()

    def move(self, layout: Layout) -> None:
        """Write under another rank's names from here on."""
        self._lines.put(layout)

    def info(self, text: str) -> None:
        """Note what happened."""
        self._note(logging.INFO, text)

    def warning(self, text: str) -> None:
        """Note what an operator should know."""
        self._note(logging.WARNING, text)

    def error(self, text: str) -> None:
        """Note what went wrong."""
        self._note(logging.ERROR, text)

    def report(
        self,
        number: int,
        outcome: Outcome,
        text: str,
        *,
        capture: str | None = None,
        cut: str = "",
        expected: str = "",
        loud: bool = False,
    ) -> None:
        """Note what became of an edit, also in the log: as a warning if ``loud``."""
        self.outcomes.note(number, outcome, text, capture, cut, expected)
        level = logging.WARNING if loud or outcome in _LOUD else logging.INFO
        self._note(level, f"request {number}: {text}")

    def note_blocked(self, number: int, blocked_by: str) -> None:
        """Note what an edit waits for, once, however often that is found."""
        self.note_waiting(number, f"waits, {blocked_by}")

    def note_waiting(self, number: int, text: str) -> None:
        """Note something of an edit, if that is news and it still waits."""
        if self.outcomes.wait(number, text):
            self.info(f"request {number}: {text}")

    def report_refusal(self, number: int, texts: list[str]) -> None:
        """Note why a request is refused, and keep that for the status."""
        self.set_status(problems=tuple(texts), remarks=())
        self.outcomes.note(number, "refused", "\n".join(texts))
        self.warning("\n".join([f"request {number}: refused, nothing changes", *texts]))

    def set_status(self, **fields: Any) -> None:
        """Keep fields of the status until they are told anew."""
        with self._status_lock:
            self.status_fields = {**self.status_fields, **fields}

    def stop(self) -> None:
        """Write what is left, with a last status, and end the thread."""
        self._lines.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _note(self, level: int, text: str) -> None:
        self._lines.put(logging.LogRecord("dynprof", level, "", 0, text, None, None))

    def _run(self) -> None:
        due_s = time.monotonic()
        running = True
        while running:
            running = self._write_lines(max(0.0, due_s - time.monotonic()))
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + _to_next_tick_s(time.time())
                self._on_tick()
            self._boundary.attempt("writing the status", self._write_status)
        self._write_lines(0)  # what the last status had to say
        self._close()

    def _close(self) -> None:
        """Close the log; lines that a full or read-only disk has not taken are lost."""
        if self._handler:
            with contextlib.suppress(OSError):
                self._handler.close()

    def _write_lines(self, patience_s: float) -> bool:
        """Write lines until there are none for ``patience_s``; False once the journal stops."""
        with contextlib.suppress(queue.Empty):
            record = self._lines.get(timeout=patience_s)
            while record is not None:
                if isinstance(record, Layout):
                    self._move(record)
                elif self._handler:
                    self._handler.handle(record)
                record = self._lines.get_nowait()
            return False
        return True

    def _open(self) -> None:
        self._handler = _LogFile(self._layout)
        self._handler.setFormatter(_LineFormatter(self._layout.named))

    def _move(self, layout: Layout) -> None:
        self._close()
        self._layout, self._written = layout, None
        self._status_file.move(layout)
        self._open()

    def _write_status(self) -> None:
        status = self._snapshot()
        last = self._written
        soon_s = HEARTBEAT_S - TICK_S / 2  # a tick may come a little early
        if last and 0 <= status.heartbeat - last.heartbeat < soon_s:  # clocks are set back
            still: dict[str, Any] = {"heartbeat": 0, "step": 0, "step_ms": None, "still_s": 0}
            still |= {"recent_steps": (), "stands_in": ""}
            is_learned = last.step_ms is None and status.step_ms is not None  # who looks wants it
            same = dataclasses.replace(status, **still) == dataclasses.replace(last, **still)
            if same and not is_learned:
                return
        self._written = status
        self._status_file.write(status)


def _to_next_tick_s(wall_s: float) -> float:
    """Return the seconds to the next whole second, or to the one after that where it is near.

    All ranks look at their step counters at whole seconds: those can be compared.
    """
    return 1.5 * TICK_S - (wall_s + TICK_S / 2) % TICK_S


class _LogFile(RotatingFileHandler):
    """A rotating file, private to user and group, that stays where its directory stands."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        super().__init__(layout.log, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, delay=True)

    def _open(self) -> Any:
        return open(self.baseFilename, "a", encoding="utf-8", opener=self._opener)

    def _opener(self, path: str, flags: int) -> int:  # noqa: ARG002 - those of appending
        if self._layout.root.exists():  # else somebody has removed it
            self._layout.make_dir(Path(path).parent)
        return open_to_append(Path(path), follow_symlinks=self._layout.follow_symlinks)

    def doRollover(self) -> None:  # noqa: N802
        """Begin a new file; where an old one cannot be moved, the newest lines count."""
        newest = Path(self.baseFilename)
        files = [
            newest,
            *(newest.with_name(f"{newest.name}.{n + 1}") for n in range(LOG_FILES - 1)),
        ]
        if self.stream:
            self.stream.close()
            self.stream = None
        try:
            for old, older in reversed(list(itertools.pairwise(files))):
                with contextlib.suppress(FileNotFoundError):
                    rename(old, older)
        except OSError:  # a directory is in its place, say
            with self._open() as file:
                file.truncate(0)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, first opening the file anew if that was removed or moved away."""
        path = Path(self.baseFilename)
        try:
            if self.stream and not _is_at(self.stream, path):
                self.stream.close()
                self.stream = None
        except OSError:
            self.handleError(record)
        else:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drop the line: there is no better place to say so, and training goes on."""


def _is_at(file: Any, path: Path) -> bool:
    """Return whether it is this file that has the path, not another one."""
    with contextlib.suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


class _LineFormatter(logging.Formatter):
    """``2026-01-31 03:00:00.123 WARNING rank 3  text``, one line a record and no control codes."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        head = f"{stamp}.{int(record.created % 1 * 1000):03d} {record.levelname:7} {self._who}  "
        lines = [printable(line) for line in record.getMessage().split("\n")]
        return head + "\n    ".join(lines)


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, so that a terminal only shows it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
