"""Delays, depths and causes of a queue, compared with plain loops over the raw events."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dynprof.analysis.measures.idle import streams
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.queue import queue, queue_blockers
from dynprof.analysis.report.sections import waiting
from tests.real_traces import on_each
from tests.unit.analysis.measures.idle_oracle import Oracle
from tests.unit.analysis.random_waits import random_waits

if TYPE_CHECKING:
    from pathlib import Path

PERCENTS = (10, 50, 90, 100)


def check(path: Path) -> None:
    """Compare every stream's queue with a plain count."""
    measured, oracle = MeasuredTrace(path), Oracle(path)
    for device, stream in streams(measured.trace, measured.launches):
        found = queue(measured.trace, measured.launches, device, stream)
        mine = [w for w in oracle.work if (w["args"]["device"], w["args"]["stream"]) ==
                (device, stream) and oracle.launch(w)]  # fmt: skip
        delays, changes = [], defaultdict[int, int](int)
        for work in mine:
            call = oracle.launch(work) or work
            delays.append(max(0, oracle.begin(work) - oracle.end(call)))
            changes[oracle.begin(call)] += 1
            changes[max(oracle.begin(work), oracle.begin(call))] -= 1
        assert found.delay.tolist() == delays
        depth, lasts, before = 0, defaultdict[int, int](int), None
        for time in sorted(changes):
            if before is not None:
                lasts[depth] += time - before
            depth, before = depth + changes[time], time
        assert depth == 0
        whole = sum(lasts.values())
        if whole:
            expected = [
                min(
                    d
                    for d in lasts
                    if sum(t for e, t in lasts.items() if e <= d) >= p * whole / 100
                )
                for p in PERCENTS
            ]
            assert found.depth_percentiles(PERCENTS) == expected
        everything = sum(d * t for d, t in lasts.items())
        behind = queue_blockers(measured.trace, measured.launches, found)
        assert sum(time for _, _, time in behind) >= 0
        first, last = found.times[:1], found.times[-1:]
        assert (found.waited_until(last) - found.waited_until(first)).tolist() == (
            [everything] if mine else []
        )
        check_behind(oracle, mine, {name: time for name, _, time in behind})


def check_behind(oracle: Oracle, mine: list[dict[str, object]], behind: dict[str, int]) -> None:
    """Compare the delay that one kind of kernel causes with a loop over all work that waited."""
    if not mine:
        assert not behind
        return
    name = str(mine[len(mine) // 2]["name"])
    runs = [work for work in mine if work["name"] == name]
    if len(runs) * len(mine) > 300_000:
        return
    expected = 0
    for run in runs:
        for work in mine:
            call = oracle.launch(work) or work
            begin, end = oracle.begin(call), max(oracle.begin(work), oracle.begin(call))
            expected += max(0, min(end, oracle.end(run)) - max(begin, oracle.begin(run)))
    assert behind[name] == expected


@on_each
def test_on_real_traces(path: Path) -> None:
    """This covers several versions of torch and several vendors."""
    check(path)


@pytest.mark.parametrize("seed", range(8))
def test_on_random_traces(tmp_path: Path, seed: int) -> None:
    """Streams wait for each other, graphs have many kernels, hosts wait."""
    check(random_waits(tmp_path, seed))


def test_the_report_shows_causes_and_queues(tmp_path: Path) -> None:
    """The report has idle time by cause and kind, percentiles by stream, and depth over time."""
    measured = MeasuredTrace(random_waits(tmp_path, 1, steps=200))
    said = waiting(measured)
    assert said
    idle = measured.breakdown.parts["idle"] / 1e6
    assert sum(said["kinds"].values()) == pytest.approx(idle)
    assert sum(time for _, time in said["causes"]) == pytest.approx(idle)
    assert [one["stream"] for one in said["streams"]] == [7, 20]
    for one in said["streams"]:
        found = queue(measured.trace, measured.launches, 0, one["stream"])
        assert one["count"] == len(found.work)
        assert one["delay"][-1] == found.delay.max() / 1e3
        assert one["depth"][-1] == found.depth.max()
        assert one["delay"] == sorted(one["delay"])
    whole = queue(measured.trace, measured.launches, 0)
    assert max(said["depth"]["depth"]) == whole.depth.max()
    assert len(said["depth"]["ms"]) <= 600
    assert (np.diff(said["depth"]["ms"]) > 0).all()
    delays = said["delays"]
    assert max(delays["us"]) == whole.delay.max() / 1e3
    assert len(delays["ms"]) == len(delays["us"]) <= 600
    assert (np.diff(delays["ms"]) > 0).all()


def test_delays_over_time_are_those_of_each_launch(tmp_path: Path) -> None:
    """Few launches are drawn one by one: each at the end of its call, relative to the first."""
    path = random_waits(tmp_path, 3)
    measured, oracle = MeasuredTrace(path), Oracle(path)
    said = waiting(measured)
    assert said
    calls = [(work, call) for work in oracle.work if (call := oracle.launch(work))]
    first = min(oracle.begin(call) for _, call in calls)
    expected = [
        ((oracle.end(call) - first) / 1e6, max(0, oracle.begin(work) - oracle.end(call)) / 1e3)
        for work, call in calls
    ]
    found = np.array([said["delays"]["ms"], said["delays"]["us"]]).T
    assert np.array(sorted(found.tolist())) == pytest.approx(np.array(sorted(expected)))
    assert found[:, 0].tolist() == sorted(found[:, 0])
