"""If steps are only noted and handled later, the window is the same as without that."""

from __future__ import annotations

import signal
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynprof.windows import loop as loop_module
from dynprof.windows.loop import TURN_EVERY_S, Loop
from dynprof.windows.window import Window
from tests.fake_job import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ACTIONS = st.one_of(
    st.integers(1, 12),  # steps
    st.sampled_from(["cancel", "stop", "another thread", "jump", "slow", "signal", "edit"]),
)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the steps that were handled at once."""
    had, turn = list[int](), Loop.turn

    def noted(loop: Loop, *, a_step_ended: bool = True) -> None:
        had.append(loop._inbox.step)
        turn(loop, a_step_ended=a_step_ended)

    monkeypatch.setattr(Loop, "turn", noted)
    return had


def a_job(root: Path, *, noting: bool) -> Job:
    root.mkdir()
    job = Job(root)
    job.backend.only_notes_steps = noting
    return job


def do(job: Job, action: int | str) -> None:
    """Cause one of the events of a job."""
    inbox = job.session.inbox
    if isinstance(action, int):
        job.step(action)
    elif action == "cancel":
        job.edit(cancel=True)
    elif action == "stop":
        job.session.stop()
    elif action == "another thread":
        thread = threading.Thread(target=job.step)
        thread.start()
        thread.join()
    elif action == "jump":
        inbox.step += 100
    elif action == "slow":
        job.clock.advance(1.0)
    elif action == "signal":
        inbox.wake()
    else:
        job.edit(active=7)


def what_came(job: Job) -> list[dict[str, Any]]:
    """Return the windows' reports, in order."""
    found = sorted(job.manifests(), key=lambda manifest: manifest.request.number)
    kept = ("steps", "complete", "reason", "remarks", "request")
    return [{name: str(getattr(manifest, name)) for name in kept} for manifest in found]


@given(
    warmup=st.integers(0, 3),
    active=st.integers(1, 30),
    bound=st.booleans(),
    actions=st.lists(ACTIONS, max_size=12),
)
def test_deferred_windows_equal_direct_ones(
    tmp_path_factory: pytest.TempPathFactory,
    warmup: int,
    active: int,
    bound: bool,
    actions: list[int | str],
) -> None:
    """Numbers, counts, reasons and the recording's calls are equal, also with threads and jumps."""
    root = tmp_path_factory.mktemp("both")
    jobs = [a_job(root / "noted", noting=True), a_job(root / "turned", noting=False)]
    for job in jobs:
        job.edit(warmup=warmup, active=active)
        job.step()
        for recording in job.backend.recordings:
            recording.bound_to_thread = bound
        for action in actions:
            do(job, action)
        job.session.stop()
        job.step()
    noted, turned = jobs
    assert what_came(noted) == what_came(turned)
    assert [one.steps for one in noted.backend.recordings] == [
        one.steps for one in turned.backend.recordings
    ]
    assert [one.calls for one in noted.backend.recordings] == [
        one.calls for one in turned.backend.recordings
    ]


def test_most_steps_are_only_noted(tmp_path: Path, turns: list[int]) -> None:
    """One in 25 steps of 10 ms is handled, for checks of limits every 250 ms, and the last one."""
    job = a_job(tmp_path / "job", noting=True)
    job.edit(active=62)
    job.step(1 + 62)
    assert turns == [1, 26, 51, 63]
    assert (turns[1] - turns[0]) * 0.01 == pytest.approx(TURN_EVERY_S)
    (manifest,) = job.manifests()
    assert (manifest.steps.first, manifest.steps.last, manifest.steps.recorded) == (1, 62, 62)


def test_a_later_thread_with_a_reused_id_is_another_one(tmp_path: Path) -> None:
    """The system reuses thread ids: a later thread's steps are not in the window."""

    def step(job: Job) -> int | None:
        thread = threading.Thread(target=job.step)
        thread.start()
        thread.join()
        return thread.ident

    for attempt in range(100):
        job = a_job(tmp_path / str(attempt), noting=True)
        job.step()
        job.edit(active=30)
        if step(job) == step(job):
            break
    else:
        pytest.skip("no thread id was reused")
    job.session.stop()
    job.step()
    (manifest,) = job.manifests()
    assert manifest.steps.recorded == 0
    assert "the thread that it was opened on has ended" in manifest.reason


def test_durations_are_those_of_the_steps(tmp_path: Path) -> None:
    """The duration of each step is known, also of noted ones."""
    job = a_job(tmp_path / "job", noting=True)
    job.edit(active=9)
    job.step(10)
    (manifest,) = job.manifests()
    assert manifest.cost.step_during_ms == pytest.approx(10.0)


class Steps(deque[Any]):
    """The list of notes, with a method that can be interrupted."""

    def append(self, noted: Any) -> None:
        """Append a note."""
        super().append(noted)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a job whose window of 30 steps has noted two."""
    monkeypatch.setattr(loop_module, "deque", Steps)
    made = a_job(tmp_path / "job", noting=True)
    made.edit(active=30)
    made.step(3)
    return made


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that delivers a signal to a handler after the next call of a method."""
    before = signal.getsignal(signal.SIGUSR1)

    def prepare(kind: Any, name: str, handler: Callable[[], None]) -> None:
        whole = getattr(kind, name)

        def interrupted(*args: Any) -> Any:
            monkeypatch.setattr(kind, name, whole)
            found = whole(*args)
            signal.raise_signal(signal.SIGUSR1)
            return found

        signal.signal(signal.SIGUSR1, lambda *_: handler())
        monkeypatch.setattr(kind, name, interrupted)

    yield prepare
    signal.signal(signal.SIGUSR1, before)


MOMENTS = pytest.mark.parametrize(
    "moment",
    [(loop_module, "time_ns"), (Steps, "append"), (Window, "count_noted")],
    ids=["noting", "noted", "counting"],
)


@MOMENTS
def test_a_signal_handler_that_shuts_down_and_exits(
    job: Job, interrupts: Callable[..., None], moment: tuple[Any, str]
) -> None:
    """The window is saved with the noted steps."""

    def leave() -> None:
        job.session.end("shutdown() was called")
        raise SystemExit(0)

    interrupts(*moment, leave)
    with pytest.raises(SystemExit):
        job.step(29)
    (manifest,) = job.manifests()
    (recording,) = job.backend.recordings
    assert (manifest.reason, job.state) == ("shutdown() was called", "stopped")
    assert manifest.trace
    assert manifest.steps.recorded == len(recording.steps) - 1  # it ends inside the last


@pytest.mark.parametrize(
    "moment", [(loop_module, "time_ns"), (Steps, "append")], ids=["noting", "noted"]
)
def test_a_thread_that_comes_in_between(
    job: Job, interrupts: Callable[..., None], moment: tuple[Any, str]
) -> None:
    """The thread counts noted steps; one that it has not seen is counted by its own thread."""

    def come() -> None:
        thread = threading.Thread(target=job.session._loop.turn)  # its step is counted already
        thread.start()
        thread.join()

    (recording,) = job.backend.recordings
    recording.bound_to_thread = False
    interrupts(*moment, come)
    job.step(60)
    (manifest,) = job.manifests()
    assert recording.steps == sorted(set(recording.steps))
    assert len(recording.steps) == manifest.steps.recorded == 30


def test_two_threads_that_step_at_any_time(tmp_path: Path) -> None:
    """Any thread may note and count: each step is there once, in order."""
    for number in range(20):
        job = a_job(tmp_path / str(number), noting=True)
        job.edit(active=2000)
        job.step()
        (recording,) = job.backend.recordings
        recording.bound_to_thread = False
        threads = [threading.Thread(target=job.step, args=(200,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        job.session.stop()
        (manifest,) = job.manifests()
        assert recording.steps == sorted(set(recording.steps))
        assert manifest.steps.recorded == len(recording.steps) - 1 <= 600  # it ends inside the last
        assert manifest.steps.recorded > 300
