"""What is read of the system: real counters of this process, and a fake of NVIDIA's library."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from dynprof.runtime.threads import clock_of
from dynprof.watch import resources
from dynprof.watch.resources import (
    CollectionLog,
    Counters,
    RunQueue,
    gpu_readers,
    thread_ns,
)

if TYPE_CHECKING:
    import pytest


def test_the_clock_of_another_thread_is_that_threads_own() -> None:
    """It counts the thread's CPU time; once the thread has ended it reads as 0."""
    used: list[int] = []
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        sum(range(200_000))
        used.append(time.thread_time_ns())
        done.set()
        go.wait()

    thread = threading.Thread(target=work)
    thread.start()
    done.wait()
    clock = clock_of(thread.native_id or 0)
    assert used[0] <= thread_ns(clock) < used[0] + 50_000_000
    go.set()
    thread.join()
    while thread_ns(clock):  # the system may take a moment to end it
        time.sleep(0)


def test_counters_of_this_system_are_read() -> None:
    """Those that it lacks are missing; closed ones are not read."""
    counters = Counters()
    first = counters.read()
    assert set(first) >= {"read_mb", "written_mb"}
    assert all(value >= first[name] for name, value in counters.read().items())
    counters.close()
    assert counters.read() == {}


def test_waits_for_a_cpu_are_those_that_the_system_counts() -> None:
    """An unknown thread has none."""
    schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    queue = RunQueue(threading.get_native_id())
    before, waited_ns = int(schedstat.read_text().split()[1]), queue.waited_ns()
    assert 0 < before <= waited_ns <= int(schedstat.read_text().split()[1])
    queue.close()
    assert queue.waited_ns() == RunQueue(0).waited_ns() == 0


def test_both_versions_of_control_groups_are_understood() -> None:
    """Version 2 counts microseconds, version 1 nanoseconds."""
    second = "usage_usec 5\nnr_throttled 2\nthrottled_usec 250000\n"
    first = "nr_periods 9\nnr_throttled 2\nthrottled_time 250000000\n"
    assert resources._throttled(second) == resources._throttled(first) == {"throttled_ms": 250}


def test_collections_are_noted_until_it_stops() -> None:
    """A short one is not kept; a callback that is left would cost every collection."""
    log = CollectionLog()
    log.start()
    garbage: list[list[object]] = [[{} for _ in range(100)] for _ in range(1000)]
    gc.collect()
    log.stop()
    noted = len(log.found)
    assert {one.generation for one in log.found} >= {2}
    del garbage
    gc.collect()
    assert len(log.found) == noted
    assert log._note not in gc.callbacks


def test_gpus_are_those_that_cuda_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its clock, its load, and why the clock is low."""
    library = SimpleNamespace(
        NVMLError=ValueError,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 4,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetClockInfo=lambda handle, _: 900 + handle,
        nvmlDeviceGetMaxClockInfo=lambda *_: 1980,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=97),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x44,
    )
    monkeypatch.setattr(resources, "pynvml", library)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,9")
    (gpu,) = gpu_readers()
    assert gpu() == {
        "gpu": 2, "sm_mhz": 902, "most_mhz": 1980, "busy_percent": 97,
        "limited_by": ["its power limit", "its temperature (hardware)"],
    }  # fmt: skip
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert len(gpu_readers()) == 4
    monkeypatch.setattr(resources, "pynvml", None)
    assert gpu_readers() == []
