"""Jobs in environments without the packages of the analysis, or without a profiler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.integration.running import LOOP, RunningJob, steps_in, wait_for

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT = """
import sys
sys.modules["{name}"] = None
"""
PROFILE = """
import warnings
warnings.simplefilter("always")
import dynprof.profiler as p
handler = p.tensorboard_trace_handler("traces")
with p.profile(schedule=p.schedule(wait=0, active=2, repeat=1), on_trace_ready=handler) as prof:
    for _ in range(3):
        prof.step()
"""
COMMAND = "needs duckdb; install it with: pip install 'dynprof[analysis]'"


def test_window_is_saved_where_analysis_is_not_installed(tmp_path: Path) -> None:
    """Log, status and manifest name the command that installs it; the trace is whole."""
    with RunningJob(tmp_path, WITHOUT.format(name="duckdb") + LOOP) as job:
        job.when("the job to run", lambda status: status.step > 2)
        job.edit(active=2, analyse=True)
        manifest, trace = job.capture()
        assert manifest.complete
        assert len(steps_in(trace)) == 2
        assert [COMMAND in remark for remark in manifest.remarks] == [True]
        assert "/analyse: the capture is saved, but not analysed" in manifest.remarks[0]
        status = job.status()
        assert status
        assert any(COMMAND in remark for remark in status.remarks)
        failed = f"could not be analysed: the analysis {COMMAND}"
        wait_for("the log of it", lambda: failed in job.log() or None)


def test_refusal_names_command_where_no_profiler_is_installed(tmp_path: Path) -> None:
    """Without torch and VizTracer the edit is refused, with what installs the latter."""
    with RunningJob(tmp_path, WITHOUT.format(name="viztracer") + LOOP) as job:
        job.when("the job to run", lambda status: status.step > 2)
        job.edit(active=2)
        status = job.when("the answer", lambda status: bool(status.problems))
    (problem,) = status.problems
    assert "no profiler can serve here" in problem
    assert "needs viztracer; install it with: pip install 'dynprof[python]'" in problem


def test_profile_saves_trace_where_analysis_is_not_installed(tmp_path: Path) -> None:
    """``profile()`` saves the trace, and warns with the command that installs the analysis."""
    with RunningJob(tmp_path, WITHOUT.format(name="duckdb") + PROFILE) as job:
        _, errors = job.process.communicate()
        assert job.process.returncode == 0, errors
    assert COMMAND in errors
    (trace,) = (tmp_path / "traces").rglob("*.trace.json")
    assert json.loads(trace.read_text())["traceEvents"]
