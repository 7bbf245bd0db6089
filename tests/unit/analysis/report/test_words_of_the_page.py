"""The words on the page, which fit the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.report.contents import contents, verdict
from dynprof.analysis.report.sections import waiting
from dynprof.captures.manifest import Cost
from tests.unit.analysis.made_jobs import COMPUTE, Job
from tests.unit.analysis.vendor_files.captured import captured

if TYPE_CHECKING:
    from pathlib import Path


def late(*, marked: bool) -> Job:
    """Return a job whose device waits for the host, with its step marked or not."""
    job = Job()
    if marked:
        job.step()
    job.launch("gemm", 10, 20, 100)
    job.launch("gemm", 880, 890, 100)
    return job


def test_a_share_is_of_a_step_or_of_the_trace(tmp_path: Path) -> None:
    """Without marked steps, shares are of the trace."""
    for marked, whole in ((True, "a step"), (False, "the trace")):
        found = contents(late(marked=marked).measured(tmp_path))["findings"]
        assert {one["of"] for one in found} == {whole}


@pytest.mark.parametrize(
    ("lengths", "said", "whole"),
    [
        ((1000, 1000, 1000), "A step takes 1 ms (median of 3 steps).", "a step"),
        ((1000, 1000, 1300), "; shares are of the mean, 1.1 ms).", "the mean step"),
        ((1000, 400), "shares are of both.", "both steps"),
        ((1000, 1000, 1000, 9000), "step 3 took 9 ms, 9 times the median.", "the other 3 steps"),
    ],
)
def test_a_share_is_of_the_length_that_the_verdict_says(
    tmp_path: Path, lengths: tuple[float, ...], said: str, whole: str
) -> None:
    """Each step keeps the device busy but for 200 us, in which the host is late."""
    job, begin, usual = Job(), 0.0, [length for length in lengths if length < 9000]
    for number, length in enumerate(lengths):
        job.host(f"ProfilerStep#{number}", begin, length, "user_annotation")
        job.launch("gemm", begin + 10, begin + 20, 80)
        job.launch("gemm", begin + 280, begin + 300, length - 300)
        begin += length
    page = contents(job.measured(tmp_path))
    assert said in page["verdict"]
    (found,) = (one for one in page["findings"] if one["title"] == "The device waits for the host")
    assert found["of"] == whole
    assert found["share"] == pytest.approx(200 / (sum(usual) / len(usual)))


def test_a_small_trace_has_a_size(tmp_path: Path) -> None:
    """The page does not show 0.0 MB."""
    measured = late(marked=True).measured(tmp_path)
    size = measured.path.stat().st_size
    assert ("trace", f"{size / 1000:,.1f} kB uncompressed") in contents(measured)["about"]


def test_waits_for_events_are_unknown_where_none_is_recorded(tmp_path: Path) -> None:
    """Without CUDA's synchronisations the page does not show 0 of them; with them it has a time."""
    job = late(marked=True)
    silent = waiting(job.measured(tmp_path))
    job.told("Stream Wait Event", job.call("cudaStreamWaitEvent", 500, 5), COMPUTE, 501)
    told = waiting(job.measured(tmp_path))
    assert silent
    assert told
    assert "queued for an event" not in silent["streams"][0]["kinds"]
    assert "queued for an event" in told["streams"][0]["kinds"]
    assert "queued alone" in silent["streams"][0]["kinds"]


def test_advice_to_record_less_names_only_used_settings(tmp_path: Path) -> None:
    """Every page warns that recording slows the job; advice names only settings in use."""
    step = {"name": "ProfilerStep#0", "cat": "user_annotation", "ts": 1, "dur": 20_000}
    measured = captured(tmp_path, [{"ph": "X", "pid": 1, "tid": 1, **step}])
    assert measured.manifest is not None
    (path,) = tmp_path.rglob("*.info.json")
    cost = Cost(open_ms=0, close_ms=0, step_before_ms=10, step_during_ms=20)
    said = {}
    request = measured.manifest.request
    stacks = request.model_copy(update={"config": {**request.config, "with_stack": True}})
    for backend in ("torch", "marks", "python", "torch without stacks"):
        facts = {"backend": backend.split()[0], "cost": cost}
        facts["request"] = request if "without" in backend else stacks
        measured.manifest.model_copy(update=facts).save(path)
        lines = verdict(MeasuredTrace(measured.path))
        (said[backend],) = (line for line in lines if "100% longer, 20 ms on" in line)
    slowed = (
        "Recording made the steps 100% longer, 20 ms on the host instead of 10 ms, if these "
        "steps did the same work as the others"
    )
    share = f"{slowed}: code that runs much Python has too large a share here"
    assert said == {
        "torch": f"{share}; recording without stacks slows less.",
        "marks": f"{slowed}.",
        "python": f"{share}.",
        "torch without stacks": f"{share}.",
    }


def test_a_slow_step_is_not_blamed_on_recording(tmp_path: Path) -> None:
    """As for a step with an evaluation: another step next to it took as long as before."""
    steps = [
        {"name": f"ProfilerStep#{n}", "cat": "user_annotation", "ts": ts, "dur": dur}
        for n, (ts, dur) in enumerate([(1, 10_500), (10_600, 80_000)])
    ]
    measured = captured(tmp_path, [{"ph": "X", "pid": 1, "tid": 1, **step} for step in steps])
    assert measured.manifest is not None
    (path,) = tmp_path.rglob("*.info.json")
    cost = Cost(open_ms=0, close_ms=0, step_before_ms=10, step_during_ms=45)
    measured.manifest.model_copy(update={"cost": cost}).save(path)
    assert not any("longer" in line for line in verdict(MeasuredTrace(measured.path)))


def test_window_is_compared_with_the_hour_before(tmp_path: Path) -> None:
    """Terminal and page say what was usual; older manifests do not know it."""
    step = {"name": "ProfilerStep#0", "cat": "user_annotation", "ts": 1, "dur": 70_000}
    measured = captured(tmp_path, [{"ph": "X", "pid": 1, "tid": 1, **step}])
    assert measured.manifest is not None
    assert not any("hour before" in line for line in verdict(measured))
    (path,) = tmp_path.rglob("*.info.json")
    cost = Cost(open_ms=0, close_ms=0, step_hour_ms=22.04, step_during_ms=70.1)
    measured.manifest.model_copy(update={"cost": cost}).save(path)
    measured = MeasuredTrace(measured.path)
    text = "In the hour before the window, a step took 22 ms (median)."
    assert text in verdict(measured)
    assert text in str(contents(measured))


def test_the_terminal_names_missing_parts_of_a_capture(tmp_path: Path) -> None:
    """An early end and lost events are named, because the capture has less than requested."""
    step = {"name": "ProfilerStep#0", "cat": "user_annotation", "ts": 1, "dur": 900}
    measured = captured(tmp_path, [{"ph": "X", "pid": 1, "tid": 1, **step}])
    assert measured.manifest is not None
    (path,) = tmp_path.rglob("*.info.json")
    facts = {"reason": "the process ended", "lost": ("the oldest events were lost",)}
    measured.manifest.model_copy(update=facts).save(path)
    measured = MeasuredTrace(measured.path)
    assert verdict(measured)[1:3] == [
        "Closed early: the process ended.",
        "The oldest events were lost.",
    ]
    page = contents(measured)["warnings"]
    assert page == ["closed early: the process ended", "the oldest events were lost"]
