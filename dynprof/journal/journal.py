"""The log and the status file of one process.

Other threads only put their messages into a queue; one thread writes. So a slow or broken disk
never blocks the training loop. This thread also calls ``on_tick`` once a second, for periodic
checks.
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
from dynprof.journal.events import Events
from dynprof.journal.status import HEARTBEAT_S, JOURNAL_THREAD, StatusFile
from dynprof.runtime.error_boundary import ErrorBoundary
from dynprof.runtime.layout import Layout
from dynprof.runtime.safe_write import open_to_append, rename
from dynprof.runtime.threads import own_thread, show_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.journal.edit_outcomes import Outcome
    from dynprof.journal.status import Status

TICK_S = 1.0
"""Seconds between two readings of the step counter."""
LOG_BYTES = 2_000_000
"""Size of a log file at which a new one begins."""
LOG_FILES = 3
"""Number of log files, including the current one."""

_LOUD = ("refused", "failed", "superseded", "not served")
"""Outcomes that are logged as warnings."""


class Journal:
    """Writes the log and the status on its own thread.

    Args:
        layout: Where to write.
        snapshot: Returns the current status; called by the thread.
        on_tick: Called by the thread about once a second.
        on_event: The command for events; empty for none.

    Attributes:
        status_fields: Fields of the status that keep their last value.
        outcomes: The outcome of each edit.
        events: What others want to know.
        on_stop: Called by the thread before it ends.
    """

    def __init__(
        self,
        layout: Layout,
        snapshot: Callable[[], Status],
        on_tick: Callable[[], None],
        on_event: tuple[str, ...] = (),
    ) -> None:
        self.status_fields: dict[str, Any] = {}
        self.outcomes = EditOutcomes()
        self.on_stop: Callable[[], object] = bool
        self._boundary = ErrorBoundary(self)
        self._status_lock = threading.RLock()  # a signal handler may call start() while it is held
        self._layout, self._snapshot, self._on_tick = layout, snapshot, on_tick
        self.events = Events(self, on_event)
        self._lines: queue.SimpleQueue[logging.LogRecord | Layout | None] = queue.SimpleQueue()
        self._status_file = StatusFile(layout, self.warning)
        self._written: Status | None = None
        self._handler: logging.Handler | None = None
        self._thread = own_thread(self._run, JOURNAL_THREAD)

    def start(self) -> None:
        """Open the log and start writing.

        Raises:
            OSError: The directories cannot be created.
        """
        self._layout.make_dir(self._layout.log.parent)
        self._layout.make_dir(self._layout.status.parent)
        self._open()
        self._thread.start()

    @property
    def layout(self) -> Layout:
        """Where this rank reads and writes."""
        return self._layout

    @property
    def status_path(self) -> Path | None:
        """The status file that was written last; None if there is none."""
        return self._status_file.path

    def move(self, layout: Layout) -> None:
        """Write to another rank's files from now on."""
        self._lines.put(layout)

    def info(self, text: str) -> None:
        """Log an event."""
        self._note(logging.INFO, text)

    def warning(self, text: str) -> None:
        """Log what an operator should know."""
        self._note(logging.WARNING, text)

    def error(self, text: str) -> None:
        """Log a failure."""
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
        """Set the outcome of an edit and log it; as a warning if ``loud``."""
        self.outcomes.note(number, outcome, text, capture, cut, expected)
        level = logging.WARNING if loud or outcome in _LOUD else logging.INFO
        self._note(level, f"request {number}: {text}")
        if outcome == "failed":
            self.events.report("failed", text, request=number)

    def note_blocked(self, number: int, blocked_by: str) -> None:
        """Report once what blocks an edit."""
        self.note_waiting(number, f"waits, {blocked_by}")

    def note_waiting(self, number: int, text: str) -> None:
        """Report what an edit waits for, if this is new and the edit still waits."""
        if self.outcomes.wait(number, text):
            self.info(f"request {number}: {text}")

    def report_refusal(self, number: int, texts: list[str]) -> None:
        """Report why a request is refused, and keep the reasons in the status."""
        self.set_status(problems=tuple(texts), remarks=())
        self.outcomes.note(number, "refused", "\n".join(texts))
        self.warning("\n".join([f"request {number}: refused, nothing changes", *texts]))

    def set_status(self, **fields: Any) -> None:
        """Set fields of the status; they keep their value until the next call with them."""
        with self._status_lock:
            self.status_fields = {**self.status_fields, **fields}

    def stop(self) -> None:
        """Write the remaining lines and a last status, and stop the thread."""
        self._lines.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _note(self, level: int, text: str) -> None:
        self._lines.put(logging.LogRecord("dynprof", level, "", 0, text, None, None))

    def _run(self) -> None:
        show_name()
        due_s = time.monotonic()
        running = True
        while running:
            running = self._write_lines(max(0.0, due_s - time.monotonic()))
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + _to_next_tick_s(time.time())
                self._on_tick()
                self._run_command()
            self._boundary.attempt("writing the status", self._write_status)
        self._boundary.attempt("ending the periodic work", self.on_stop)
        self._run_command(is_last=True)
        self._write_lines(0)  # what writing the last status has logged
        self._close()

    def _run_command(self, *, is_last: bool = False) -> None:
        self._boundary.attempt(
            "running the command of on_event", lambda: self.events.run_command(is_last=is_last)
        )

    def _close(self) -> None:
        """Close the log; lines that a full or read-only disk has not accepted are lost."""
        if self._handler:
            with contextlib.suppress(OSError):
                self._handler.close()

    def _write_lines(self, patience_s: float) -> bool:
        """Write lines until none arrives for ``patience_s``; return False if the journal stops."""
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
        self._handler.setFormatter(LineFormatter(self._layout.named))

    def _move(self, layout: Layout) -> None:
        self._close()
        self._layout, self._written = layout, None
        self._status_file.move(layout)
        self._open()

    def _write_status(self) -> None:
        status = self._snapshot()
        last = self._written
        soon_s = HEARTBEAT_S - TICK_S / 2  # a tick can be a little early
        if last and 0 <= status.heartbeat - last.heartbeat < soon_s:  # a clock can be set back
            still: dict[str, Any] = {
                "heartbeat": 0,
                "step": 0,
                "step_ms": None,
                "since_last_step_s": 0,
            }
            still |= {"recent_steps": (), "recent_pace": None, "stuck_at": "", "watch": None}
            still |= {"memory": None}
            is_learned = (
                last.step_ms is None and status.step_ms is not None
            )  # operators wait for it
            same = dataclasses.replace(status, **still) == dataclasses.replace(last, **still)
            if same and not is_learned:
                return
        self._written = status
        self._status_file.write(status)


def _to_next_tick_s(wall_s: float) -> float:
    """Return the seconds to the next whole second, or to the one after it if that is too near.

    All ranks read their step counters at whole seconds, so that these can be compared.
    """
    return 1.5 * TICK_S - (wall_s + TICK_S / 2) % TICK_S


class _LogFile(RotatingFileHandler):
    """A rotating file, private to user and group, that is always at its path."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        super().__init__(layout.log, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, delay=True)

    def _open(self) -> Any:
        return open(self.baseFilename, "a", encoding="utf-8", opener=self._opener)

    def _opener(self, path: str, flags: int) -> int:  # noqa: ARG002 - those of appending
        if self._layout.root.exists():  # it may have been removed
            self._layout.make_dir(Path(path).parent)
        return open_to_append(Path(path), follow_symlinks=self._layout.follow_symlinks)

    def doRollover(self) -> None:  # noqa: N802
        """Start a new file; if an old one cannot be moved, discard the lines of the current one."""
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
        except OSError:  # for example, a directory has its name
            with self._open() as file:
                file.truncate(0)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; first reopen the file if it was removed or moved."""
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
        """Drop the line: there is no better place to report it, and training continues."""


def _is_at(file: Any, path: Path) -> bool:
    """Return whether an open file is the one at the path."""
    with contextlib.suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


class LineFormatter(logging.Formatter):
    """Formats ``2026-01-31 03:00:00.123 WARNING rank 3  text``, without control codes."""

    def __init__(self, rank: str) -> None:
        super().__init__()
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as it is in the log; further lines of it are indented."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        head = f"{stamp}.{int(record.created % 1 * 1000):03d} {record.levelname:7} {self._rank}  "
        lines = [printable(line) for line in record.getMessage().split("\n")]
        return head + "\n    ".join(lines)


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, so that a terminal does not run them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
