"""Captures with lost calls: the manifest says so, and names the whole steps."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import events, log, manifests, run, run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest

CALLS = 900
SMALL_RING = """
from dynprof.backends import python
python.MAX_EVENTS = 5_000
"""
"""A hundredth of the usual buffer; it fills in a hundredth of the time."""
SETS = """
import cProfile, sys
def called():
    pass
def profile(*_):
    pass
profiler = cProfile.Profile()
def briefly():
    profiler.enable()
    profiler.disable()
for act in (
    lambda: sys.setprofile(profile),
    lambda: sys.setprofile(None),
    profiler.enable,
    briefly,
):
    window(active=3{settings})
    for number in range(3):
        called()
        if number == 1:
            act()
        dp.step()
    sys.setprofile(None)
    profiler.disable()
    idle()
window(active=3{settings})
for _ in range(3):
    called()
    dp.step()
idle()
"""
WHY = (
    "the script has set a profile function of its own, by sys.setprofile() or cProfile: later calls"
)


def whole_steps(folder: Path, manifest: Manifest) -> list[int]:
    """Return the steps for which a trace has all calls that the script made."""
    trace = events(folder, manifest)
    spans = {
        int(event["name"].split("#")[1]): (event["ts"], event["ts"] + event["dur"])
        for event in trace
        if event["name"].startswith("ProfilerStep#")
    }
    calls = [event["ts"] for event in trace if event["name"].startswith("called ")]
    counts = {step: sum(begin <= ts < end for ts in calls) for step, (begin, end) in spans.items()}
    return [step for step, count in sorted(counts.items()) if count == CALLS]


def test_a_window_of_more_calls_than_are_kept(tmp_path: Path) -> None:
    """The manifest names exactly the steps with all of their calls."""
    run_without_torch(
        tmp_path,
        SMALL_RING
        + f"""
def called():
    pass
for steps in (7, 3):
    window(active=steps)
    for _ in range(steps):
        for _ in range({CALLS}):
            called()
        dp.step()
    idle()
""",
    )
    lossy, whole = manifests(tmp_path)
    there = whole_steps(tmp_path, lossy)
    assert 0 < len(there) < 7
    assert list(range(lossy.steps.first, lossy.steps.last + 1)) == there
    assert lossy.steps.recorded == len(there)
    assert not lossy.complete
    assert lossy.reason == (
        f"of more than 5,000 calls the oldest are lost; steps from {there[0]} on are complete"
    )
    said = f"request 1: its capture is not complete: {lossy.reason}"
    assert re.search(f"WARNING .*{re.escape(said)}", log(tmp_path))
    assert whole.complete
    assert (whole.steps.recorded, whole.reason, whole.lost) == (3, "", ())


def test_a_recording_that_ends_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """The step in which the recording ends does not count as whole."""
    run_without_torch(
        tmp_path,
        SMALL_RING
        + f"""
def called():
    pass
window(active=100)
for _ in range(6):
    for _ in range({CALLS}):
        called()
    dp.step()
for _ in range({CALLS} // 2):
    called()
dp.stop()
idle()
""",
    )
    (cut,) = manifests(tmp_path)
    there = whole_steps(tmp_path, cut)
    assert there[-1] == 5
    assert (cut.steps.first, cut.steps.recorded) == (there[0], len(there))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there each profiler has calls of its own")
def test_a_profile_function_set_in_a_window_of_plain_python(tmp_path: Path) -> None:
    """A capture with lost calls is not complete; the next one is."""
    run_without_torch(tmp_path, SETS.format(settings=""))
    *cut, whole = manifests(tmp_path)
    assert len(cut) == 4
    for manifest in cut:
        assert not manifest.complete
        assert manifest.reason.startswith(WHY)
    assert (whole.complete, whole.reason) == (True, "")
    assert log(tmp_path).count(f"its capture is not complete: {WHY}") == 4


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 5), reason="there torch keeps cProfile from starting"
)
def test_a_profile_function_set_in_a_window_with_stacks(tmp_path: Path) -> None:
    """Torch uses such a function for calls too, so the same holds for windows with stacks."""
    pytest.importorskip("torch", reason="torch is not installed")
    said = run(tmp_path, SETS.format(settings=", with_stack=True"))
    *cut, whole = manifests(tmp_path)
    assert len(cut) == 4
    for manifest in cut:
        assert manifest.reason.startswith(WHY)
    assert (whole.complete, whole.reason) == (True, "")
    assert said.count(f"its capture is not complete: {WHY}") == 4
