"""The one thread that collects."""

from __future__ import annotations

import threading

import pytest

from dynprof.backends.closing import LowPriorityThread
from dynprof.errors import BackendError
from dynprof.process import threads
from tests.pace import patience_s


def test_a_task_without_memory_leaves_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would use libkineto at once; whoever waits for the task is told."""
    monkeypatch.setattr(threads, "AGAIN_S", 0.001)
    collector, served = LowPriorityThread(), list[threading.Thread]()

    def fail() -> None:
        raise MemoryError

    for _ in range(3):
        with pytest.raises(BackendError):
            collector.begin(fail).result()
        collector.begin(lambda: served.append(threading.current_thread())).result()
    assert len(set(served)) == 1


def test_a_task_that_fails_otherwise_ends_its_thread() -> None:
    """And the next one has another."""
    collector, served, ended = LowPriorityThread(), list[threading.Thread](), threading.Event()
    before, threading.excepthook = threading.excepthook, lambda _: ended.set()

    def fail() -> None:
        served.append(threading.current_thread())
        raise ValueError

    try:
        with pytest.raises(BackendError):
            collector.begin(fail).result()
        assert ended.wait(patience_s())
    finally:
        threading.excepthook = before
    collector.begin(lambda: served.append(threading.current_thread())).result()
    first, second = served
    assert first is not second
