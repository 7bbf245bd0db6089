"""The schedule and the window engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynprof.profiler import ProfilerAction, schedule
from dynprof.testing import FakeBackend, FakeRecording
from dynprof.windows.window import Window

NONE, WARMUP = ProfilerAction.NONE, ProfilerAction.WARMUP
RECORD, SAVE = ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE


def test_a_schedule_repeats_its_cycle() -> None:
    """Skipped steps come once; then wait, warm-up and recording repeat."""
    action_at = schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)
    cycle = [NONE, WARMUP, RECORD, SAVE]
    assert [action_at(step) for step in range(11)] == [NONE, *cycle, *cycle, NONE, NONE]


def test_a_schedule_shows_its_numbers() -> None:
    """A schedule has the vendor's fields, positions and type."""
    made = schedule(1, 2, 3, 4, 5, 6)
    numbers = (made.wait, made.active, made.warmup, made.repeat, made.skip_first)
    assert (*numbers, made.skip_first_wait) == (1, 2, 3, 4, 5, 6)
    assert isinstance(made, schedule)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
@given(*[st.integers(0, 4)] * 3, st.integers(1, 4), st.integers(0, 3))
def test_a_schedule_is_that_of_torch(
    skip_first: int, wait: int, warmup: int, active: int, repeat: int
) -> None:
    """For any numbers, each step has the same action as in torch."""
    torch_profiler = pytest.importorskip("torch.profiler", reason="torch is not installed")
    numbers = {"skip_first": skip_first, "wait": wait, "warmup": warmup, "repeat": repeat}
    ours, theirs = schedule(active=active, **numbers), None
    theirs = torch_profiler.schedule(active=active, **numbers)
    assert all(ours(step).name == theirs(step).name for step in range(40))


@pytest.mark.parametrize(
    "wrong",
    [
        {"wait": -1},
        {"warmup": -1},
        {"repeat": "x"},
        {"active": 0},
        {"skip_first": 1.5},
        {"skip_first_wait": None},
    ],
)
def test_a_wrong_number_of_a_schedule_is_named_and_the_least_taken(wrong: dict[str, Any]) -> None:
    """A wrong number gives a warning, and the least valid number is used."""
    ((name, number),) = wrong.items()
    least = int(name == "active")
    usual = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0}
    with pytest.warns(UserWarning, match=rf"{name}={number!r} is not .*; {least} is used"):
        odd = schedule(**{**usual, **wrong})
    plain = schedule(**{**usual, name: least})
    assert [odd(step) for step in range(9)] == [plain(step) for step in range(9)]


def run(window: Window, step: int, steps: int) -> FakeRecording:
    """Open a window and let steps pass, each of a second."""
    backend = FakeBackend()
    recording = FakeRecording(backend)
    window.open(lambda: recording, step)
    window.resume(0)
    for n in range(1, steps + 1):
        if window.end_step(n):
            window.close()
            break
        window.begin_step(step + n)
        window.resume(n)
    return recording


def test_warm_up_is_prepared_but_not_kept() -> None:
    """The recording starts with the first step after the warm-up, under the job's numbers."""
    recording = run(Window(warmup=2, active=3, asked_first=102), step=100, steps=9)
    assert recording.steps == [102, 103, 104]
    assert recording.calls == ["prepare", "start", *["begin_step"] * 3, "close"]


@given(st.integers(0, 5), st.integers(1, 6))
def test_a_window_records_exactly_the_requested_steps(warmup: int, active: int) -> None:
    """Exactly ``active`` whole steps are recorded, then it ends."""
    window = Window(warmup, active, asked_first=warmup)
    recording = run(window, step=0, steps=warmup + active + 3)
    assert recording.steps == list(range(warmup, warmup + active))
    assert window.recorded == active
    assert window.durations_s == [1.0] * active
    assert window.progress == (warmup + active, warmup + active)


def test_a_window_closed_in_its_warm_up_keeps_nothing() -> None:
    """Without a step to keep, the recording is left to be discarded."""
    window = Window(warmup=2, active=1, asked_first=2)
    backend = FakeBackend()
    recording = FakeRecording(backend)
    window.open(lambda: recording, 0)
    assert window.state == "warmup"
    assert window.close() is None
    assert window.recording is recording
    assert recording.calls == ["prepare"]


def test_a_window_closed_early_keeps_its_steps() -> None:
    """A recording that is closed early is stopped and returned."""
    window = Window(warmup=0, active=9, asked_first=0)
    recording = run(window, step=0, steps=3)
    assert window.state == "recording"
    assert window.close() is recording
    assert window.recorded == 3
