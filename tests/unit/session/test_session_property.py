"""Any sequence of edits, steps, cancels and slow saves keeps the session's guarantees."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynprof.journal.edit_outcomes import IN_PROGRESS
from tests.fake_job import Job

_ENDS = re.compile(r"request \d+: (superseded by|cancelled by|not served|refused)")


class Training(RuleBasedStateMachine):
    """A job and its operator, with random actions."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.job = Job(Path(self.folder.name), hold=True)
        self.steps = 0
        self.accepted = 0
        self.said = ""

    def teardown(self) -> None:
        """End the job; every request then has a result, and nothing runs."""
        self.job.session.end("the process ended")
        self.said += self.job.log()
        assert self.job.backend.running == 0
        answers = self.job.session._journal.outcomes.answers
        assert not [answer for answer in answers if answer.outcome in IN_PROGRESS]
        ends = len(_ENDS.findall(self.said))
        assert ends + len(self.job.manifests()) == self.said.count(": accepted")
        for manifest in self.job.manifests():
            self._check(manifest.steps.recorded, manifest.steps.last - manifest.steps.first + 1)
            assert manifest.complete == (manifest.reason == "")
            assert manifest.complete <= (manifest.trace is not None)
        self.folder.cleanup()

    @staticmethod
    def _check(recorded: int, asked: int) -> None:
        assert 0 <= recorded <= asked

    @rule(active=st.integers(1, 4), warmup=st.integers(0, 3), ahead=st.integers(0, 6))
    def edit(self, active: int, warmup: int, ahead: int) -> None:
        """Save a valid config, for the next step or a later one."""
        start = self.steps + ahead if ahead > 1 else 0
        self.job.edit(active=active, warmup=warmup, start_step=start)

    @rule()
    def spoil(self) -> None:
        """Save an invalid config."""
        self.said += self.job.log()
        waiting, current = self.job.session.inbox.waiting, self.job.session._loop.open_window
        self.job.edit(active=-1)
        assert self.job.session.inbox.waiting is waiting
        assert self.job.session._loop.open_window is current
        self.said += self.job.log().replace(": refused", ": invalid")

    @rule()
    def cancel(self) -> None:
        """Save a cancel."""
        self.job.edit(cancel=True)
        assert self.job.session.inbox.waiting is None

    @rule(times=st.integers(1, 5))
    def train(self, times: int) -> None:
        """Take steps."""
        self.job.step(times)
        self.steps += times

    @rule()
    def stop(self) -> None:
        """Call ``stop()``."""
        self.job.session.stop()
        assert self.job.session._loop.open_window is None

    @precondition(lambda self: self.job.saving.busy)
    @rule()
    def save(self) -> None:
        """Let the saves finish."""
        self.job.saving.finish()

    @invariant()
    def at_most_one_recording_runs(self) -> None:
        """There is one window at a time, and none during a save."""
        running = self.job.backend.running
        assert running <= 1
        assert not (running and self.job.saving.busy)

    @invariant()
    def steps_are_counted(self) -> None:
        """The counter equals the job's."""
        assert self.job.session.inbox.step == self.steps

    @invariant()
    def recordings_have_consecutive_steps(self) -> None:
        """No step is recorded twice or left out, and none after the window's last."""
        for recording in self.job.backend.recordings:
            steps = recording.steps
            assert steps == list(range(steps[0], steps[0] + len(steps))) if steps else True

    @invariant()
    def something_is_due_exactly_while_something_is_there(self) -> None:
        """A step has work to do exactly if there is a window or a request."""
        loop, inbox = self.job.session._loop, self.job.session.inbox
        assert inbox.due >= bool(loop.open_window or inbox.waiting)


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
