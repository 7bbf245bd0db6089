"""A window is bound to the thread that opened it; others may step, stop and end."""

from __future__ import annotations

import threading

import pytest

from dynprof.session import session
from dynprof.testing import FakeBackend
from tests.fake_job import Job


@pytest.mark.parametrize("call", ["prepare", "begin_step", "close"])
def test_one_thread_at_a_time_moves_a_window(
    job: Job, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A thread that ends a step waits while another one opens, advances or closes the window."""
    others, waits = list[threading.Thread](), list[bool]()

    def in_the_backend(_: FakeBackend, name: str) -> None:
        if name == call and not others:
            others.append(threading.Thread(target=job.step))
            others[0].start()
            others[0].join(0.2)
            waits.append(others[0].is_alive())

    monkeypatch.setattr(FakeBackend, "maybe_fail", in_the_backend)
    job.edit(active=2)
    job.step(4)
    others[0].join()
    assert waits == [True]


def test_stop_from_another_thread_waits_for_the_step(job: Job) -> None:
    """Only the training thread touches the profiler."""
    job.edit(active=100)
    job.step(4)
    other = threading.Thread(target=job.session.stop)
    other.start()
    other.join()
    assert job.state == "recording"
    job.step()
    assert job.manifests()[0].reason == "stopped by the script"


def test_step_from_another_thread_does_not_move_the_window(job: Job) -> None:
    """Steps of a second thread do not count for the first."""
    job.edit(active=2)
    job.step()
    other = threading.Thread(target=job.step, args=(5,))
    other.start()
    other.join()
    assert job.session.status().progress == (0, 2)
    assert "steps of other threads are not recorded" in job.log()


def test_a_window_whose_thread_has_ended_is_discarded(job: Job) -> None:
    """Training that moves to another thread does not leave a window open forever."""

    def open_window() -> None:
        job.edit(active=5)
        job.step()

    other = threading.Thread(target=open_window)
    other.start()
    other.join()
    job.step()
    (manifest,) = job.manifests()
    assert manifest.reason.startswith("the thread that it was opened on has ended; only the thread")
    job.edit(active=1)
    job.step(2)
    assert job.manifests()[-1].complete


def test_windows_whose_threads_have_ended_are_not_profiler_failures(job: Job) -> None:
    """Any number of them may be lost in a row; the next is served."""
    (job.root / "other.json").write_text('{"active": 1}')
    for _ in range(5):
        other = threading.Thread(target=job.session.start, args=(job.root / "other.json",))
        other.start()
        other.join()
        job.step()
    job.session.start(job.root / "other.json")
    job.step()
    assert [manifest.complete for manifest in job.manifests()] == [False] * 5 + [True]


def test_a_window_of_another_thread_can_be_cancelled(job: Job) -> None:
    """If its own thread takes no more steps, a cancel releases the window."""
    opened, over = threading.Event(), threading.Event()

    def open_window() -> None:
        job.edit(active=5)
        job.step()
        opened.set()
        over.wait()

    other = threading.Thread(target=open_window)
    other.start()
    opened.wait()
    job.step()
    assert job.state == "recording"
    job.edit(cancel=True)
    job.step()
    over.set()
    other.join()
    assert "cancelled by request 2" in job.manifests()[0].reason


def test_the_end_on_another_thread_leaves_the_profiler_alone(job: Job) -> None:
    """A profiler bound to a thread that takes no more steps is not touched from another."""

    def open_window() -> None:
        job.edit(active=5)
        job.step(2)

    other = threading.Thread(target=open_window)
    other.start()
    other.join()
    job.session.end("the process ended")
    (manifest,) = job.manifests()
    assert "the process ended; only the thread that opened" in manifest.reason
    assert job.backend.recordings[0].calls[-1] == "abandon"


def test_a_thread_ends_a_recording_of_the_last_session(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a window that shutdown() discarded ends its recording at its next step."""
    monkeypatch.setattr(session, "CLOSE_WAIT_S", 0.0)
    job.edit(active=5)
    job.step(2)
    other = threading.Thread(target=job.session.end, args=("shutdown() was called",))
    other.start()
    other.join()
    assert job.backend.running == 1
    Job(job.root).step()
    assert job.backend.running == 0


def test_the_end_waits_for_the_step_of_the_training_thread(job: Job) -> None:
    """After shutdown on another thread, the window is closed by its own thread, and kept."""
    opened, over = threading.Event(), threading.Event()

    def train() -> None:
        job.edit(active=500_000)
        job.step(3)
        opened.set()
        while not over.is_set():
            job.step()

    other = threading.Thread(target=train)
    other.start()
    opened.wait()
    job.session.end("shutdown() was called")
    over.set()
    other.join()
    (manifest,) = job.manifests()
    assert (manifest.complete, manifest.reason) == (False, "shutdown() was called")
    assert manifest.trace
