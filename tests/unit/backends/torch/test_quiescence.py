"""A sleeping thread has soon left its operator; a computing or waiting one may not have."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from dynprof.backends.torch import quiescence
from dynprof.backends.torch.quiescence import (
    PAUSES_S,
    TICKS,
    TIMEOUT_S,
    _Thread,
    wait_for_operators,
    wait_for_threads_inside,
)

SLEEPS, RUNS = _Thread(5, asleep=True), _Thread(5, asleep=False)
BLOCKED = _Thread(5, asleep=True, blocked=True)


@pytest.mark.parametrize(
    ("before", "now", "pause_s", "left"),
    [
        (SLEEPS, SLEEPS, PAUSES_S[0], True),
        (RUNS, SLEEPS, PAUSES_S[-1], False),
        (SLEEPS, RUNS, PAUSES_S[-1], False),
        (RUNS, _Thread(5 + TICKS, asleep=False), PAUSES_S[0], True),
        (BLOCKED, BLOCKED, PAUSES_S[0], False),
        (SLEEPS, BLOCKED, PAUSES_S[0], False),
        (BLOCKED, BLOCKED, PAUSES_S[-1], True),
        (RUNS, None, PAUSES_S[0], True),
    ],
)
def test_when_a_thread_has_left(
    before: _Thread, now: _Thread | None, pause_s: float, *, left: bool
) -> None:
    """A sleeping thread has left at once; one blocked in the kernel, after the longest pause."""
    assert before.has_left(now, pause_s) is left


@pytest.mark.parametrize("runs", [False, True])
def test_a_computing_thread_is_waited_for_until_the_timeout(
    monkeypatch: pytest.MonkeyPatch, *, runs: bool
) -> None:
    """Threads that sleep at two checks in a row are in no operator."""
    slept: list[float] = []
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now_s[0] += seconds

    monkeypatch.setattr(
        quiescence, "_other_threads", lambda: {1: SLEEPS, 2: RUNS if runs else SLEEPS}
    )
    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now_s[0])
    monkeypatch.setattr(quiescence, "time", clock)
    wait_for_operators(0.1)
    assert sum(slept) == pytest.approx(0.1 if runs else PAUSES_S[0])


def test_a_thread_without_a_processor_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runnable thread without a CPU stays in its operator, and its CPU time stops."""
    held_up, went_on = _Thread(5, asleep=False), _Thread(5 + TICKS, asleep=False)
    looks, slept = iter([held_up, held_up, held_up, went_on]), list[float]()
    monkeypatch.setattr(quiescence, "_other_threads", lambda: {7: held_up})
    monkeypatch.setattr(quiescence, "_read_thread", lambda _: next(looks))
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr(quiescence, "time", clock)
    wait_for_threads_inside()
    assert tuple(slept) == PAUSES_S


def test_the_wait_for_a_thread_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is never seen to continue counts as having left at the timeout."""
    slept = list[float]()
    monkeypatch.setattr(quiescence, "_other_threads", lambda: {7: RUNS})
    monkeypatch.setattr(quiescence, "_read_thread", lambda _: RUNS)
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr(quiescence, "time", clock)
    wait_for_threads_inside()
    assert sum(slept) == pytest.approx(TIMEOUT_S, abs=PAUSES_S[-1])


def test_the_calling_thread_is_not_waited_for() -> None:
    """The calling thread itself is computing."""
    assert threading.get_native_id() not in quiescence._other_threads()
