"""Windows that end in the middle of a step: figures per step count whole steps only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.integration.scripts import events, manifests, run, run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

CUT = """
window(active=100)
for _ in range(4):
    time.sleep(0.02)
    dp.step()
time.sleep(0.01)
dp.stop()
idle()
"""


def check(folder: Path) -> None:
    """Compare the steps with the manifest, and check that the trace marks one more."""
    (manifest,) = manifests(folder)
    marks = [e["name"] for e in events(folder, manifest) if e["name"].startswith("ProfilerStep#")]
    (trace,) = (folder / "prof_config").rglob(manifest.trace)
    steps = MeasuredTrace(trace).marked
    first = manifest.steps.first
    assert [number for number, _, _ in steps] == list(range(first, first + 4))
    assert len(set(marks)) == 5
    assert manifest.steps.recorded == 4
    assert all(length >= 20e6 for _, _, length in steps)


def test_steps_of_a_window_that_is_cut(tmp_path: Path) -> None:
    """With torch, the trace has the incomplete step, and the figures leave it out."""
    pytest.importorskip("torch", reason="torch is not installed")
    run(tmp_path, CUT)
    check(tmp_path)


def test_steps_of_a_window_of_plain_python_that_is_cut(tmp_path: Path) -> None:
    """With VizTracer, the trace has the incomplete step, and the figures leave it out."""
    run_without_torch(tmp_path, CUT)
    check(tmp_path)


def test_a_window_that_ends_in_its_first_step(tmp_path: Path) -> None:
    """Without a whole step, the recording is shown as one span without a number."""
    run_without_torch(tmp_path, "window(active=5)\ntime.sleep(0.02)\ndp.stop()\nidle()\n")
    (manifest,) = manifests(tmp_path)
    assert manifest.steps.recorded == 0
    for trace in (tmp_path / "prof_config").rglob(str(manifest.trace)):
        assert [number for number, _, _ in MeasuredTrace(trace).marked] == [None]
