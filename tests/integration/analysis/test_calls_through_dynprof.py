"""The job's calls count as the job's if dynprof's functions are around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.breakdown import RECORDING
from dynprof.analysis.vendor_files.stacks import folded
from tests.integration.running import TORCH_JOB, RunningJob

pytest.importorskip("torch", reason="torch is not installed")

ANNOTATED = """
import dynprof.mstx as mstx
def busy(): time.sleep(0.02)
@mstx.annotate()
def heavy(): busy()
def batches():
    while True:
        busy()
        yield 1
dp.init("prof_config")
for _ in dp.phases.iterate(batches()):
    heavy()
    train_one_step()
    dp.step()
"""
STEPPED = """
def busy(): time.sleep(0.04)
def work():
    busy()
    train_one_step()
dp.init("prof_config", steps=":work")
while True: work()
"""


@pytest.mark.parametrize("script", [ANNOTATED, STEPPED], ids=["annotated", "a step's function"])
def test_dynprof_functions_around_the_jobs_calls_are_not_profiler_work(
    tmp_path: Path, script: str
) -> None:
    """The 40 ms that the job takes in each step are its own, and are in its stacks."""
    with RunningJob(tmp_path, TORCH_JOB + script) as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(active=3, with_stack=True)
        job.capture()
        (path,) = job.root.glob("step_*/*.trace.json*")
    measured = MeasuredTrace(Path(path))
    steps = measured.breakdown
    assert steps.time_in(steps.causes[RECORDING]) < 0.5 * steps.length
    busy_us = sum(time for line, time in folded(measured) if "busy" in line)
    assert busy_us > 0.9 * 3 * 40_000
