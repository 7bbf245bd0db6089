"""What stands on the page, in words that fit the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.report.contents import contents
from dynprof.analysis.report.waiting import waiting
from tests.unit.analysis.made_jobs import COMPUTE, Job

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
    """Where no step is marked, nothing is a share of one."""
    for marked, whole in ((True, "a step"), (False, "the trace")):
        found = contents(late(marked=marked).measured(tmp_path))["findings"]
        assert {one["of"] for one in found} == {whole}


def test_a_small_trace_has_a_size(tmp_path: Path) -> None:
    """It is not 0.0 MB."""
    measured = late(marked=True).measured(tmp_path)
    size = measured.path.stat().st_size
    assert ("trace", f"{size / 1000:,.1f} kB uncompressed") in contents(measured)["about"]


def test_waits_for_events_are_unknown_where_none_is_recorded(tmp_path: Path) -> None:
    """Without CUDA's synchronisations there is no 0 of them; with them there is a time."""
    job = late(marked=True)
    silent = waiting(job.measured(tmp_path))
    job.told("Stream Wait Event", job.call("cudaStreamWaitEvent", 500, 5), COMPUTE, 501)
    told = waiting(job.measured(tmp_path))
    assert silent
    assert told
    assert "queued for an event" not in silent["streams"][0]["kinds"]
    assert "queued for an event" in told["streams"][0]["kinds"]
    assert "queued alone" in silent["streams"][0]["kinds"]
