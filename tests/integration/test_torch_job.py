"""A real torch job, whose config a second process edits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.running import (
    PYTHON,
    TORCH_JOB,
    TORCH_JOB_WITH_OPTIMIZER,
    RunningJob,
    operators,
    steps_in,
)

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

ENDLESS = (
    TORCH_JOB
    + """
dp.init("prof_config")
while True:
    train_one_step()
    time.sleep(0.002)
    dp.step()
"""
)


METADATA = {"who": 'é "me" \\ \n', '"': {"rank": 7}, "rank": 8}


def test_an_edit_captures_exactly_the_requested_steps(tmp_path: Path) -> None:
    """The trace has the active steps under the job's numbers, and none of the warm-up."""
    with RunningJob(tmp_path, ENDLESS.replace("while", 'dp.set_state({"cur_step": 1000})\nwhile')) \
            as job:  # fmt: skip
        job.when("training", lambda status: status.step >= 1000)
        job.edit(active=4, warmup=2, metadata=METADATA)
        manifest, trace = job.capture()
        assert manifest.complete
        first = manifest.steps.first
        assert first > 1002
        assert steps_in(trace) == list(range(first, first + 4))
        assert len(operators(trace, "aten::addmm")) == 4 * 2
        assert trace["distributedInfo"]["rank"] == 0
        assert trace["metadata"] == METADATA
        assert trace["dynprof"]["steps"]["first"] == first
        assert manifest.cost.close_ms > 0
        assert f"recording steps {first}-{first + 3} after 2 of warm-up" in job.log()


def test_the_settings_reach_torch(tmp_path: Path) -> None:
    """The trace has shapes, memory, stacks and flops if the config requests them."""
    with RunningJob(tmp_path, ENDLESS) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(
            active=2, record_shapes=True, profile_memory=True, with_stack=True, with_flops=True
        )
        _, trace = job.capture()
        first = operators(trace, "aten::addmm")[0]
        assert first["args"]["Input Dims"][1] == [16, 32]
        names = {event["name"] for event in trace["traceEvents"]}
        assert "[memory]" in names
        assert any("train_one_step" in name for name in names)
        assert trace["with_flops"] == 1


LOSSES = (
    TORCH_JOB_WITH_OPTIMIZER
    + """
if sys.argv[1:] != ["bare"]:
    dp.init("prof_config")
for n in range(150):
    print(float(train_one_step()).hex())
    if sys.argv[1:] != ["bare"]:
        dp.step()
        time.sleep(0.03)  # 150 steps outlast the self-test and two windows
"""
)


def test_losses_are_bit_identical(tmp_path: Path) -> None:
    """Training gives the same losses without dynprof, switched off, and with windows open."""
    for name in ("bare", "off", "on"):
        (tmp_path / name).mkdir()
    bare = LOSSES.replace("sys.argv[1:]", "['bare']")
    with RunningJob(tmp_path / "bare", bare) as job:
        expected = job.end()
    with RunningJob(tmp_path / "off", LOSSES, DYNPROF_DISABLE="1") as job:
        assert job.end() == expected
        assert not job.root.exists()
    with RunningJob(tmp_path / "on", LOSSES) as job:
        for number, settings in enumerate([{}, {"with_stack": True, "profile_memory": True}], 1):
            job.when("idle", lambda status: status.state == "idle")
            job.edit(active=10, warmup=1, **settings)
            manifest, _ = job.capture(number)
            assert manifest.steps.recorded == 10
        assert job.end() == expected
    assert len(expected.splitlines()) == 150


ENDS: dict[str, Any] = {
    "return": ("", 0),
    "exception": ("raise RuntimeError('the data ran out')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "ctrl-c": ("import os, signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -2),
}


@pytest.mark.parametrize("end", ENDS)
def test_training_that_ends_inside_a_window_leaves_a_capture(tmp_path: Path, end: str) -> None:
    """A window open at the script's end is saved and marked incomplete."""
    statement, code = ENDS[end]
    script = (
        TORCH_JOB
        + f"""
dp.init("prof_config")
def main():
    while dp.status().progress is None or dp.status().progress[0] < 5:
        train_one_step()
        time.sleep(0.002)
        dp.step()
    {statement or "return"}
main()
"""
    )
    with RunningJob(tmp_path, script) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=1000)
        manifest, trace = job.capture()
        job.process.communicate()
        assert job.process.returncode == code
        assert (manifest.complete, manifest.reason) == (False, "the process ended")
        assert manifest.steps.recorded == 5
        *whole, cut = steps_in(trace)
        assert whole == list(range(manifest.steps.first, manifest.steps.first + 5))
        assert f"the trace ends inside step {cut}, which is not counted" in manifest.remarks
        text = f"5 of 1,000 steps ({whole[0]}-{whole[-1]}); early: the process ended"
        assert text in job.log()


def test_opening_does_not_import_the_compiler(tmp_path: Path) -> None:
    """A window imports no module that the job has not: torch._inductor takes a second."""
    script = """
        import sys, time, torch, dynprof as dp
        model = torch.nn.Linear(8, 8)  # no optimizer: creating one loads the compiler
        dp.init("prof_config")
        while not dp.status().last_capture:
            model(torch.randn(4, 8)).sum().backward()
            time.sleep(0.002)
            dp.step()
        print("torch._inductor" in sys.modules)
        """
    with RunningJob(tmp_path, script, [*PYTHON]) as job:  # its own interpreter
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=1)
        assert job.end().strip() == "False"


@pytest.mark.parametrize(("level", "quiet"), [("", True), ("3", False)])
def test_kineto_writes_nothing_into_the_jobs_stderr(
    tmp_path: Path, level: str, quiet: bool
) -> None:
    """Kineto's messages on a window are suppressed, unless the environment requests them."""
    script = TORCH_JOB + (
        'dp.init("prof_config")\n'
        "dp.start()\n"
        "for _ in range(3):\n"
        "    train_one_step()\n"
        "    dp.step()\n"
        "dp.shutdown()\n"
    )
    env = {"KINETO_LOG_LEVEL": level} if level else {}
    with RunningJob(tmp_path, script, **env) as job:
        _, errors = job.process.communicate()
        assert job.process.returncode == 0, errors
        assert job.capture()[0].complete
        assert (errors == "") is quiet


EVERY_SETTING = """
import json, pathlib, warnings
warnings.simplefilter("always")
dp.init("prof_config")
asked = pathlib.Path("asked.json")
for settings in (
    {"with_stack": True, "with_modules": True, "with_flops": True, "record_shapes": True},
    {"profile_memory": True, "memory_snapshot": True},
    {"experimental_config": {"profiler_level": "Level2"}},
):
    asked.write_text(json.dumps({"active": 2, **settings}))
    dp.start(asked)
    saved = dp.status().last_capture
    while dp.status().last_capture == saved:
        train_one_step()
        dp.step()
dp.shutdown()
"""
OF_THE_ALLOCATOR = "Memory block of unknown size was allocated before the profiling started"
"""torch's message if ``profile_memory`` sees a block freed that it has not seen allocated."""


def test_no_setting_makes_torch_warn_on_the_jobs_stderr(tmp_path: Path) -> None:
    """Newer versions deprecate some settings, and would warn in each window."""
    with RunningJob(tmp_path, TORCH_JOB + EVERY_SETTING) as job:
        _, errors = job.process.communicate()
        assert job.process.returncode == 0, errors
        assert [line for line in errors.splitlines() if OF_THE_ALLOCATOR not in line] == []
        assert job.capture(3)[0].complete
