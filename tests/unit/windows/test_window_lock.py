"""Signal handlers of the script run at any moment, also while its step handles a window."""

from __future__ import annotations

import operator
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from dynprof.testing import FakeRecording
from tests.fake_job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

InATurn = Callable[[Callable[[], None]], None]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job with an open window of many steps."""
    made = Job(tmp_path)
    made.edit(active=1000)
    made.step(3)
    return made


@pytest.fixture
def in_a_turn(monkeypatch: pytest.MonkeyPatch) -> Iterator[InATurn]:
    """Deliver a signal once to a handler, as the next step begins."""
    begin_step, handlers = FakeRecording.begin_step, list[object]()
    before = signal.getsignal(signal.SIGUSR1)

    def interrupted(recording: FakeRecording, number: int | None) -> None:
        if handlers:
            handlers.clear()
            os.kill(os.getpid(), signal.SIGUSR1)
        begin_step(recording, number)

    def prepare(handler: Callable[[], None]) -> None:
        handlers.append(handler)
        signal.signal(signal.SIGUSR1, lambda *_: handler())

    monkeypatch.setattr(FakeRecording, "begin_step", interrupted)
    yield prepare
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "lock",
    ["inbox._lock", "_journal._status_lock", "_journal.outcomes._lock", "_process._learning"],
)
def test_a_handler_during_a_note_does_not_block(job: Job, lock: str) -> None:
    """Calls of the handler do not wait for the thread that it has interrupted."""
    with operator.attrgetter(lock)(job.session):
        assert job.session.status().state == "recording"
        job.session.stop()
        job.session.start(None)
        job.step(2)
    assert job.manifests()[0].reason == "stopped by the script"


def test_a_handler_that_stops(job: Job, in_a_turn: InATurn) -> None:
    """The window ends with the step, and keeps its steps."""
    in_a_turn(job.session.stop)
    job.step(2)
    (manifest,) = job.manifests()
    assert (manifest.reason, manifest.steps.recorded) == ("stopped by the script", 4)
    assert (job.state, job.backend.running) == ("idle", 0)


def test_a_handler_that_shuts_down(job: Job, in_a_turn: InATurn) -> None:
    """The window is closed and saved as soon as possible; no profiler stays on."""
    in_a_turn(lambda: job.session.end("shutdown() was called"))
    job.step()
    (manifest,) = job.manifests()
    assert (manifest.reason, manifest.steps.recorded) == ("shutdown() was called", 3)
    assert (job.state, job.backend.running) == ("stopped", 0)
    job.session.end("the process ended")
    assert job.log().count("stopped at step") == 1


def test_a_handler_that_shuts_down_and_exits(job: Job, in_a_turn: InATurn) -> None:
    """Batch systems do this: the window is saved before the process ends."""

    def leave() -> None:
        job.session.end("shutdown() was called")
        raise SystemExit(0)

    in_a_turn(leave)
    with pytest.raises(SystemExit):
        job.step()
    (manifest,) = job.manifests()
    assert (manifest.reason, manifest.steps.recorded) == ("shutdown() was called", 3)
    assert (job.state, job.backend.running) == ("stopped", 0)
