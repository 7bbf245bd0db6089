"""The critical path equals that of plain loops over the raw events, and adds up to the steps."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dynprof.analysis.measures.critical_path import PARTS
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.real_traces import on_each, on_opened, raw_events
from tests.unit.analysis.plain_path import PlainPath
from tests.unit.analysis.plain_trace import blocks
from tests.unit.analysis.random_paths import random_waits
from tests.unit.analysis.random_traces import opened_late, random_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.analysis.measures.critical_path import CriticalPath


def found_in(path: Path) -> tuple[MeasuredTrace, CriticalPath]:
    """Return a trace and its path; check that the path adds up to the trace's duration."""
    measured = MeasuredTrace(path)
    found = measured.critical_path
    assert found is not None
    assert found.times.time.sum() == found.ends[-1] - found.begin
    assert (found.times.time > 0).all()
    lengths = np.bincount(found.times.step, found.times.time, minlength=len(found.ends))
    assert lengths.tolist() == found.lengths.tolist()
    assert all(0 <= one.step <= found.length for one in found.what_ifs)
    return measured, found


def check(path: Path) -> None:
    """Compare a trace's path, and its what-if times, with plain loops."""
    measured, found = found_in(path)
    plain = PlainPath(raw_events(path, Decimal))
    since = plain.earlier_until() if measured.breakdown.behind else plain.t0
    assert found.begin == since
    assert found.ends[-1] == plain.t0 + plain.length()
    expected: dict[str, int] = defaultdict(int)
    for part, time in plain.parts(since).items():
        expected[part] += time
    times = {name: round(time * len(found.ends)) for name, time in found.parts().items()}
    assert {name: expected[name] for name in PARTS} == times
    for one in found.what_ifs:
        time = without(plain.length, plain, one.what)
        if since > plain.t0:
            after = without(partial(plain.length, flying=True), plain, one.what) + plain.t0 - since
            time = max(after, without(partial(plain.length, on_host=True), plain, one.what))
        assert round(one.step * len(found.ends)) == time, one.what


def without(length: Callable[..., int], plain: PlainPath, free: str) -> int:
    """Return the total time if a kind of work cost nothing."""
    kinds = {"all kernels that compute": "kernels", "all copies": "copies",
             "communication": "communication"}  # fmt: skip
    if free == "the host's work":
        return length(free=plain.at_work)
    if free == "data loading":
        return length(free=plain.loading_in)
    if free == "delays of the device":
        return length(prompt=lambda _: True)
    if free == "the host's waits for the device":
        return length(awaited=lambda _: False)
    if free == "copies that the host waits for":
        return length(
            awaited=lambda work: not blocks(work["event"], work["call"]),
            without=lambda event: blocks(event, plain.launches.get(event["args"]["correlation"])),
        )
    if free in kinds:
        return length(without=lambda event: plain.part_of(event) == kinds[free])
    return length(without=lambda event: (event["name"], plain.part_of(event)) == (free, "kernels"))


@on_each
def test_on_real_traces(path: Path) -> None:
    """This covers waits that CUPTI records, waits that it does not, and traces without a device."""
    check(path)


@on_opened
def test_on_real_traces_that_open_on_work(path: Path) -> None:
    """Of two makers of devices."""
    check(path)


@pytest.mark.parametrize("seed", range(8))
def test_on_random_traces(tmp_path: Path, seed: int) -> None:
    """This covers graphs, launches that were not recorded, and streams that wait unrecorded."""
    check(random_trace(tmp_path, seed))


@pytest.mark.parametrize("seed", range(8))
def test_on_random_waits(tmp_path: Path, seed: int) -> None:
    """This covers events, synchronisations, blocking copies, backward passes; recorded or not."""
    check(random_waits(tmp_path, seed))


@pytest.mark.parametrize("launched_before", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_on_random_windows_that_open_on_work(
    tmp_path: Path, seed: int, launched_before: bool
) -> None:
    """With work in flight whose launch is not in the trace, or that is not in it at all."""
    whole = random_waits(tmp_path, seed, steps=8)
    check(opened_late(whole, seed, launched_before=launched_before))
