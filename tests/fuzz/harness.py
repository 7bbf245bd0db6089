"""Arbitrary bytes as the config, passed through watch, parse, plan and session.

Everything between the file and the profiler is real; the profiler is a fake that takes notes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.journal.edit_outcomes import IN_PROGRESS
from dynprof.journal.journal import LineFormatter
from dynprof.journal.status import load_status
from dynprof.requests.edit_detection import HALF_WRITTEN_S, EditDetector, read
from tests.fake_job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

CORPUS = Path(__file__).parent / "corpus"
LIFE = 50
"""The number of files that one job reads before a new job replaces it."""


class Operator:
    """Saves any bytes as the config of a job, and checks that the job is unharmed."""

    def __init__(self) -> None:
        self._left = 0
        self._closing = contextlib.ExitStack()

    def close(self) -> None:
        """End the job; its requests end with it."""
        with self._closing:
            if self._left:
                self._job.session.end("the process ended")
                answers = self._job.session._journal.outcomes.answers
                assert not [answer for answer in answers if answer.outcome in IN_PROGRESS]
                assert self._job.backend.running == 0

    def save(self, content: bytes) -> None:
        """Save a file; let the job notice it and continue training.

        Raises:
            AssertionError: The job would have failed, or the operator would have got no answer.
        """
        if not self._left:
            self._hire()
        self._left -= 1
        self._path.write_bytes(content)
        asked = self._look()
        before = self._job.session._journal.outcomes.answers
        self._job.step(3)
        self._check(before, asked=asked)
        if not self._left:
            self.close()

    def _hire(self) -> None:
        self._closing = contextlib.ExitStack()
        folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="dynprof-fuzz-"))
        Path(folder).chmod(0o770)  # an unshared config may send captures anywhere
        self._job = Job(Path(folder))
        self._path = Path(folder) / "profiler_config.json"
        self._detector = EditDetector(read(self._path))
        self._now_s, self._left = 0.0, LIFE

    def _look(self) -> int:
        """Act as the watcher's thread until the file has settled; return the edits."""
        edits = 0
        for _ in range(3):
            self._now_s += HALF_WRITTEN_S
            if edit := self._detector.observe(read(self._path), self._now_s, self._job.clock.wall):
                self._job.session.handle(edit)
                edits += 1
        return edits

    def _check(self, before: tuple[object, ...], *, asked: int) -> None:
        session = self._job.session
        status = session.status()
        assert status.last_error is None, status.last_error
        assert not Path(status.last_capture or "").is_absolute(), status.last_capture
        assert len(before) >= min(asked, 1)
        path = self._path.with_name("status.json")
        path.write_text(json.dumps(dataclasses.asdict(status)), encoding="ascii")
        assert load_status(path) == status
        for line in self._log_lines():
            assert line.isprintable(), line

    def _log_lines(self) -> Iterator[str]:
        queue, formatter = self._job.session._journal._lines, LineFormatter("rank 0")
        while not queue.empty():
            record = queue.get()
            if record is not None and not hasattr(record, "root"):
                yield from formatter.format(record).split("\n")
