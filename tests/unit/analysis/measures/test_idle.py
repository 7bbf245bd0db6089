"""Each idle nanosecond of a device has one cause; compared with plain loops over the events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.analysis import load
from dynprof.analysis.measures.idle import QUEUED, gaps, idle, streams
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.queue import queue_reasons
from dynprof.analysis.measures.timeline.breakdown import IDLE
from dynprof.analysis.reading.events import ON_DEVICE
from tests.real_traces import on_each, on_opened
from tests.unit.analysis.made_jobs import Job
from tests.unit.analysis.measures.idle_oracle import Oracle
from tests.unit.analysis.random_traces import opened_late, random_trace
from tests.unit.analysis.random_waits import random_waits

if TYPE_CHECKING:
    from pathlib import Path


def check(path: Path) -> MeasuredTrace:
    """Compare causes of idle time with a plain count; they add up to the total."""
    measured = MeasuredTrace(path)
    steps, found = measured.breakdown, measured.idle
    if found is None:
        assert steps.on_host
        return measured
    whole = round(steps.parts[IDLE] * steps.count)
    assert sum(found.by_cause().values()) == sum(found.by_kind().values()) == whole
    assert (found.start[1:] >= found.end[:-1]).all()
    if not steps.behind:
        causes, kinds = Oracle(path).idle(steps.device)
        assert {name: time for name, time in found.by_cause().items() if time} == {
            name: time for name, time in causes.items() if time
        }
        assert {name: time for name, time in found.by_kind().items() if time} == {
            name: time for name, time in kinds.items() if time
        }
    check_streams(measured)
    return measured


def check_streams(measured: MeasuredTrace) -> None:
    """Work and gaps of each stream add up to the whole time, and gaps have one cause."""
    trace, started = measured.trace, measured.launches
    spans, work = trace.spans, trace.category(ON_DEVICE)
    for device, stream in streams(trace, started):
        found = gaps(trace, started, measured.marked, device, stream)
        why = idle(trace, started, measured.host_waits, found)
        ran = work & (spans["device"] == device) & (spans["stream"] == stream)
        busy = trace.when(ran)
        begin = min(int(busy[0][0]), measured.marked[0][1])
        end = max(int(busy[1][-1]), max(step[1] + step[2] for step in measured.marked))
        whole = end - begin - int((busy[1] - busy[0]).sum())
        assert int((found.end - found.start).sum()) == whole
        assert sum(why.by_cause().values()) == sum(why.by_kind().values()) == whole
        beside = queue_reasons(trace, started, found, why, device, stream)
        assert sum(beside.values()) == why.by_kind()[QUEUED]


@on_each
def test_on_real_traces(path: Path) -> None:
    """This covers several versions of torch and several vendors."""
    check(path)


@on_opened
def test_on_real_traces_that_open_on_work(path: Path) -> None:
    """Of two makers of devices."""
    check(path)


@pytest.mark.parametrize("seed", range(8))
def test_on_random_traces(tmp_path: Path, seed: int) -> None:
    """The traces have two threads, two streams, graphs, and missing launches."""
    check(random_trace(tmp_path, seed))


@pytest.mark.parametrize("seed", range(8))
def test_on_random_traces_of_jobs_that_wait(tmp_path: Path, seed: int) -> None:
    """The traces have every cause that delays launches, also on a thread that does not matter."""
    check(random_waits(tmp_path, seed))


@pytest.mark.parametrize("launched_before", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_on_random_windows_that_open_on_work(
    tmp_path: Path, seed: int, launched_before: bool
) -> None:
    """With work in flight whose launch is not in the trace, or that is not in it at all."""
    whole = random_trace(tmp_path, seed, steps=8)
    check(opened_late(whole, seed, launched_before=launched_before))


@pytest.mark.parametrize(("called", "until"), [(100, 565), (490, 520), (400, 565)])
def test_a_wait_counts_after_its_call_as_long_as_the_call(
    tmp_path: Path, called: float, until: float
) -> None:
    """The device is idle from 500 us on, the call ends at 510, and the next launch at 565."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 20, 480)
    job.call("cudaDeviceSynchronize", called, 510 - called)
    job.launch("gemm", 560, 565, 435)
    found = load(job.measured(tmp_path).path).query(
        "SELECT kind, cause, sum(duration_ns) FROM idle WHERE call = 'cudaDeviceSynchronize' "
        "GROUP BY ALL ORDER BY kind"
    )
    assert list(found.rows()) == [
        ("host blocked", "synchronising", 10_000),
        ("host late", "synchronising", (until - 510) * 1000),
    ]
