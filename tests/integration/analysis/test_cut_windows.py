"""A window that ends amid a step: what is told of steps is told of whole ones."""

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
    """Check the steps against the manifest, and that the trace marks one more."""
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
    """Of torch's: the fragment is in the trace, and in none of what is said of steps."""
    pytest.importorskip("torch", reason="torch is not installed")
    run(tmp_path, CUT)
    check(tmp_path)


def test_steps_of_a_window_of_plain_python_that_is_cut(tmp_path: Path) -> None:
    """The same of VizTracer's."""
    run_without_torch(tmp_path, CUT)
    check(tmp_path)


def test_a_window_that_ends_in_its_first_step(tmp_path: Path) -> None:
    """It has no whole step: what it has is told as one stretch, without a number."""
    run_without_torch(tmp_path, "window(active=5)\ntime.sleep(0.02)\ndp.stop()\nidle()\n")
    (manifest,) = manifests(tmp_path)
    assert manifest.steps.recorded == 0
    for trace in (tmp_path / "prof_config").rglob(str(manifest.trace)):
        assert [number for number, _, _ in MeasuredTrace(trace).marked] == [None]
