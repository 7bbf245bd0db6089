"""``Level_none``: the script's marks and the steps, without a profiler."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

from tests.integration.running import LOOP, RunningJob, below, steps_in, wait_for

if TYPE_CHECKING:
    from pathlib import Path

MARKED = """
import dynprof.mstx as mstx
dp.init("prof_config")
epoch = mstx.range_start("epoch")
while True:
    with mstx.annotate("forward"):
        work()
    mstx.mark("after the forward pass", domain="mine")
    time.sleep(0.002)
    dp.step()
"""
JOB = "import time, dynprof as dp\ndef work(): sum(range(100))\n" + MARKED


def marks_of(trace: dict[str, Any]) -> list[str]:
    """Return the names of the marks by kind."""
    return [event["name"] for event in trace["traceEvents"] if event.get("cat") == "mstx"]


def test_trace_has_only_marks_and_steps(tmp_path: Path) -> None:
    """This also works if the config requests a device that is not here; tables are written."""
    with RunningJob(tmp_path, JOB) as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(
            active=4, activities=["CPU", "NPU"], analyse=True,
            experimental_config={"profiler_level": "Level_none", "mstx": True},
        )  # fmt: skip
        manifest, trace = job.capture()
        assert manifest.complete
        assert manifest.backend == "marks"
        first = manifest.steps.first
        assert steps_in(trace) == list(range(first, first + 4))
        found = marks_of(trace)
        assert {name: found.count(name) for name in found} == {
            "epoch": 1, "forward": 4, "after the forward pass": 4,
        }  # fmt: skip
        assert {event.get("cat") for event in trace["traceEvents"]} == {
            "mstx", "user_annotation", None,
        }  # fmt: skip
        path = wait_for("the table", lambda: next(iter(below(job.root, "msprof_tx.csv")), None))
        with path.open(newline="") as file:
            assert len(list(csv.DictReader(file))) == 9
        assert "NPU is left out" not in job.log()


def test_log_names_settings_that_need_a_profiler(tmp_path: Path) -> None:
    """The log names a setting that has no effect without a profiler."""
    with RunningJob(tmp_path, LOOP) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=1, with_stack=True, experimental_config={"profiler_level": "Level_none"})
        manifest, _ = job.capture()
        assert manifest.backend == "marks"
        assert "/with_stack has no effect with backend marks" in job.log().replace(": ", " ")
        assert '"mstx": true is used with it' in job.log()
