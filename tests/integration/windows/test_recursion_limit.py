"""Steps that end where hardly any frame is left of Python's recursion limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import events, manifests, run, run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

DEEP = """
import sys
def frames():
    frame, count = sys._getframe(), 0
    while frame:
        frame, count = frame.f_back, count + 1
    return count
def down(levels, action):
    return down(levels - 1, action) if levels else action()
def with_frames_left(left, action):
    return down(sys.getrecursionlimit() - frames() - left - 4, action)
"""
AT_EVERY_DEPTH = """
for left in range(1, 60):
    window(active=1)
    for _ in range(3):
        with_frames_left(left, dp.step)
    while dp.status().state != "idle":
        dp.step()
        time.sleep(0.001)
assert sys.getprofile() is None
"""


def check_at_every_depth(folder: Path) -> None:
    """Check that all windows of the script are whole."""
    found = manifests(folder)
    assert len(found) == 59
    for manifest in found:
        assert manifest.complete, manifest.reason
        assert manifest.steps.recorded == 1


def test_steps_near_the_recursion_limit(tmp_path: Path) -> None:
    """They raise nothing into the script; the windows, of plain Python, wait for other steps."""
    run_without_torch(tmp_path, DEEP + AT_EVERY_DEPTH)
    check_at_every_depth(tmp_path)


def test_steps_of_a_job_with_torch_near_the_recursion_limit(tmp_path: Path) -> None:
    """Torch's profiler is neither begun nor ended there."""
    pytest.importorskip("torch", reason="torch is not installed")
    run(tmp_path, DEEP + AT_EVERY_DEPTH)
    check_at_every_depth(tmp_path)


def test_steps_near_the_recursion_limit_in_a_window(tmp_path: Path) -> None:
    """They are counted, and named as parts of the step before."""
    printed = run_without_torch(
        tmp_path,
        DEEP
        + """
def work():
    pass
def train(left):
    work()
    with_frames_left(left, dp.step)
for left in (300, 300):
    train(left)
window(active=3)
for left in (300, 2, 40, 300, 300):
    train(left)
idle()
print(dp.status().step)
""",
    )
    assert printed == "7\n"
    (manifest,) = manifests(tmp_path)
    assert manifest.complete
    assert (manifest.steps.first, manifest.steps.last, manifest.steps.recorded) == (2, 6, 3)
    assert [remark.split(":")[0] for remark in manifest.remarks] == [
        "steps 4-5 are part of the one before",
        "the recorded steps are 2, 3, 6",
    ]
    seen = [event for event in events(tmp_path, manifest) if event["name"].startswith("work ")]
    assert len(seen) == 5


def test_a_request_that_only_full_stacks_meet(tmp_path: Path) -> None:
    """It waits, and the log says for what; ``start()`` says it there and then."""
    run_without_torch(
        tmp_path,
        DEEP
        + """
with_frames_left(60, lambda: dp.start())
config = Path("prof_config/profiler_config.json")
config.write_text(json.dumps({"active": 1, "activities": ["CPU"]}))
log = Path("prof_config/log")
while not any(": waits, fewer than" in path.read_text() for path in log.iterdir()):
    with_frames_left(30, dp.step)
    time.sleep(0.001)
while dp.status().last_capture is None:
    dp.step()
    time.sleep(0.001)
""",
    )
    log = "".join(path.read_text() for path in (tmp_path / "prof_config" / "log").iterdir())
    assert "start(): nothing opens; fewer than 100 frames were left" in log
    assert manifests(tmp_path)[0].complete
