"""What a step would save by a finding, against the longest path by plain loops over raw events."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dynprof.analysis.findings.finding import MIN_FINDING_SHARE
from dynprof.analysis.findings.rules import findings
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.real_traces import on_each, raw_events
from tests.unit.analysis.made_jobs import COMPUTE, SIDE, Job
from tests.unit.analysis.plain_path import PlainPath, overlap
from tests.unit.analysis.plain_trace import start
from tests.unit.analysis.random_paths import random_waits
from tests.unit.analysis.random_traces import random_trace

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.analysis.findings.finding import Finding
    from dynprof.analysis.reading.trace import Trace


def saved(one: Finding, measured: MeasuredTrace, after: float = 0) -> float:
    """Return what a step would save at most, in ns.

    Args:
        one: The finding.
        measured: The trace.
        after: How long after the mean step its work is done, in ns.
    """
    return one.severity * (measured.breakdown.length + after)


def shortest(plain: PlainPath, trace: Trace, one: Finding, since: int) -> int:
    """Return the longest path from a time on, without what a finding removes.

    Its waits may be all waits.
    """
    assert one.removal is not None
    work, late, waits = (
        {
            (trace.name(place), int(trace.spans["start"][place]))
            for place in np.flatnonzero(mask if mask is not None else ()).tolist()
        }
        for mask in (one.removal.work, one.removal.late, one.removal.waits)
    )
    host = {
        trace.tables["thread"][code]: list(zip(*(side.tolist() for side in when), strict=True))
        for code, when in one.removal.host.items()
        if code >= 0
    }

    def key(event: dict[str, Any]) -> tuple[str, int]:
        return event["name"], start(event)

    without = partial(
        plain.length,
        free=lambda thread, begin, until: overlap(host.get(thread, []), begin, until),
        prompt=lambda event: key(event) in late,
        awaited=lambda _: not waits,
        without=lambda event: key(event) in work,
    )
    if since == plain.t0:
        return without()
    return max(without(flying=True) + plain.t0 - since, without(on_host=True))


def check(path: Path) -> int:
    """Compare what findings save with plain loops; return the number of findings compared."""
    measured = MeasuredTrace(path)
    steps, plain = measured.breakdown, PlainPath(raw_events(path, Decimal))
    if steps.on_host:
        return 0
    since = plain.earlier_until() if steps.behind else plain.t0
    whole = plain.t0 + plain.length() - since
    is_unknown = plain.parts(since)["unknown wait"] > whole / 2  # then the path bounds nothing
    late = whole + since - max(begin + length for _, begin, length in measured.marked)
    after = 0 if is_unknown or steps.behind else max(0, late) / len(measured.marked)
    compared = [one for one in findings(measured, steps, least=0) if one.removal]
    for one in compared:
        most = (whole - shortest(plain, measured.trace, one, since)) / len(measured.marked)
        expected = one.share * (steps.length + (after if "until all" in one.of else 0))
        expected = expected if is_unknown else min(expected, most)
        if one.removal and one.removal.waits is None:
            assert saved(one, measured, after) == pytest.approx(expected, rel=1e-9, abs=1), (
                one.title
            )
        assert saved(one, measured, after) <= expected + 1, one.title
    savings = [one.severity for one in findings(measured, steps, least=0)]
    assert savings == sorted(savings, reverse=True)
    return len(compared)


@on_each
def test_on_real_traces(path: Path) -> None:
    """A finding saves its own time, or what the longest path is shorter without it."""
    check(path)


def test_on_random_traces(tmp_path: Path) -> None:
    """With waits that are recorded or not, and launches that are not in the trace."""
    assert sum(check(random_waits(tmp_path, seed)) for seed in range(8)) > 8
    assert sum(check(random_trace(tmp_path, seed)) for seed in range(8)) > 8


def two_streams(*, unknown: bool = False) -> Job:
    """Return a job that waits for one stream, while another has kernels that take longer."""
    job = Job()
    job.step()
    job.launch("hidden", 5, 15, 445, SIDE)
    job.launch("softmax", 12, 22, 440)
    job.launch("hidden", 20, 461, 445, SIDE)
    job.launch("layernorm", 30, 463, 445)
    wait = job.call("cudaStreamSynchronize", 40, 875)
    job.told("Stream Sync", wait, COMPUTE, 41)
    if unknown:
        job.work("softmax", 999, 990, 1)
    return job


@pytest.mark.parametrize("unknown", [False, True])
def test_kernels_that_others_hide_save_nothing(tmp_path: Path, unknown: bool) -> None:
    """The kernel with the most time is on no path, so it is no finding, though it takes 89%.

    The same holds if one other activity has no launch.
    """
    measured = two_streams(unknown=unknown).measured(tmp_path)
    assert measured.kinds[0].name == "hidden"
    assert measured.kinds[0].total == pytest.approx(890e3)
    found = findings(measured, measured.breakdown)
    assert [one.title for one in found if one.title.startswith("hidden")] == []
    assert all(one.severity >= MIN_FINDING_SHARE for one in found)


def test_kernels_save_their_time_where_no_launch_is_known(tmp_path: Path) -> None:
    """Without launches the host may wait for each kernel, so none is hidden by the host."""
    job = Job()
    job.step()
    job.host("aten::mm", 0, 900)
    job.work("gemm", 501, 100, 600)
    job.work("add", 502, 710, 90)
    measured = job.measured(tmp_path)
    (one,) = (f for f in findings(measured, measured.breakdown) if "gemm" in f.title)
    assert one.saves == "Without it a step would be 0.6 ms shorter at most."


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_streams_that_are_idle_at_once_save_what_the_device_is_idle(
    tmp_path: Path, streams: int
) -> None:
    """Each stream waits in the same gaps, without a host: none of them lasts as long alone."""
    job = Job()
    for number in range(4):
        for stream in range(streams):
            job.work("gemm", -1, 100 * number + 6 * stream, 50, COMPUTE + stream)
    measured = job.measured(tmp_path)
    idle = 3 * (100 - 50 - 6 * (streams - 1))
    every = findings(measured, measured.breakdown)
    (found,) = [one for one in every if one.removal and one.removal.late is not None]
    assert saved(found, measured) == pytest.approx(idle * 1000)
    assert found.saves == f"Without it the trace would be {idle / 1000:.3g} ms shorter at most."


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "Try pin_memory=True"),
        ("Memcpy DtoH (Device -> Pageable)", "Keep values on the device"),
    ],
)
def test_a_copy_that_blocks_the_host_saves_more_than_the_device_is_idle(
    tmp_path: Path, name: str, advice: str
) -> None:
    """The device computes while the host waits, and the host is late only long after the copy."""
    job = Job()
    job.step()
    job.launch("softmax", 0, 10, 400)
    copy = job.call("cudaMemcpyAsync", 10, 405)
    job.work(name, copy, 410, 5)
    for number in range(5):
        job.launch("gemm", 500 + 100 * number, 510 + 100 * number, 20)
    measured = job.measured(tmp_path)
    (one,) = (f for f in findings(measured, measured.breakdown) if "pinned" in f.title)
    assert "Their calls block the host for 0.405 ms" in one.detail
    assert one.saves == "Without it a step would be 0.405 ms shorter at most."
    assert one.advice.startswith(advice)


def test_a_saving_names_the_time_that_it_refers_to(tmp_path: Path) -> None:
    """The step ends before its kernels do: without them, only the work after it is saved."""
    job = Job()
    job.step()
    job.launch("gemm", 0, 200, 480)
    job.launch("gemm", 10, 680, 480)
    measured = job.measured(tmp_path)
    (one,) = findings(measured, measured.breakdown)
    assert one.saves == (
        "Without it a step would be 0.16 ms shorter at most, of the 1.16 ms until all its work is "
        "done."
    )
    assert one.severity == pytest.approx(0.16 / 1.16)
    assert one.of == "the 1.16 ms until all its work is done"
    assert one.share == pytest.approx(2 * 480 / 1160)
