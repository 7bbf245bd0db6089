"""The lock between forks and changes of a profiler, without real forks."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from dynprof.backends.torch import forks
from dynprof.backends.torch.forks import _ForkLock


def on_another_thread(fork_lock: _ForkLock) -> bool:
    """Return whether another thread can change a profiler now."""
    done = threading.Event()

    def change() -> None:
        with fork_lock.change():
            done.set()

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    return done.wait(0.5)


def test_a_fork_that_began_before_it_was_guarded_ends_well() -> None:
    """A fork that has not taken the lock does not release it at its end."""
    fork_lock = _ForkLock()
    fork_lock.end_fork()
    assert on_another_thread(fork_lock)


def test_a_child_forgets_the_threads_of_its_parent() -> None:
    """The child forgets what other threads did at the time of the fork."""
    fork_lock, inside, over = _ForkLock(), threading.Event(), threading.Event()

    def change() -> None:
        with fork_lock.change():
            inside.set()
            over.wait()

    thread = threading.Thread(target=change)
    thread.start()
    inside.wait()
    old, lock_of_child = fork_lock._lock, fork_lock
    lock_of_child.reset_in_child()
    assert on_another_thread(lock_of_child)
    assert lock_of_child._lock is not old
    over.set()
    thread.join()


def test_a_fork_waits_until_busy_threads_have_learnt_of_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait is some milliseconds after a profiler was opened or closed, and none later."""
    now_s, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now_s[0] += seconds

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now_s[0])
    monkeypatch.setattr(forks, "time", clock)
    fork_lock = _ForkLock()
    for pause_s, waits in ((0.0, True), (0.01, True), (1.0, False)):
        slept.clear()
        with fork_lock.change():
            pass
        now_s[0] += pause_s
        fork_lock.begin_fork()
        fork_lock.end_fork()
        assert sum(slept) == pytest.approx(forks.PROPAGATION_S - pause_s if waits else 0)
