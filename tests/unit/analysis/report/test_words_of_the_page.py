"""What stands on the page, in words that fit the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.report.contents import contents
from tests.unit.analysis.made_jobs import Job

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
