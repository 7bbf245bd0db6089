"""The thread that collects events."""

from __future__ import annotations

import threading
import weakref

import pytest

from dynprof.backends.torch.closing import LowPriorityThread
from dynprof.errors import BackendError


@pytest.mark.parametrize("error", [MemoryError, ValueError, OSError])
def test_a_task_that_fails_leaves_one_thread(error: type[Exception]) -> None:
    """The waiting caller gets the error; two threads would use libkineto at the same time."""
    collector, served = LowPriorityThread(), list[threading.Thread]()

    def fail() -> None:
        raise error

    for _ in range(3):
        with pytest.raises((BackendError, OSError)):
            collector.begin(fail).result()
        collector.begin(lambda: served.append(threading.current_thread())).result()
    assert len(set(served)) == 1


def test_a_task_is_released_before_its_caller_continues() -> None:
    """It references the events of a window; freed later, they would hide those of the next."""

    def events() -> None:
        may_end.wait()

    collector, may_end, gone = LowPriorityThread(), threading.Event(), list[bool]()
    task = weakref.ref(events)
    outcome = collector.begin(events)
    del events
    outcome.add_done_callback(lambda _: gone.append(task() is None))
    may_end.set()
    outcome.result()
    collector.begin(lambda: None).result()
    assert gone == [True]
