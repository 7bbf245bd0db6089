"""Events during a save: all kinds of ends of the process, forks, a full disk."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.running import TORCH_JOB, RunningJob, below

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest

SAVING = (
    TORCH_JOB
    + """
import json, os, pathlib, threading
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
def steps(number):
    return [train_one_step().item() for _ in range(number) if dp.step() is None]
dp.init("prof_config")
while SELF_TEST.answer is None:
    time.sleep(0.01)
path = pathlib.Path("asked.json")
asked = {"active": 500, "with_stack": True, "activities": ["CPU"], "prof_dir": "to"}
path.write_text(json.dumps({**asked, "limits": {"min_free_disk_mb": 0}}))
dp.start(path)
steps(500)
assert dp.status().state == "saving"
while not list(pathlib.Path("prof_config/to").rglob("*.saving")):
    time.sleep(0.01)
print("saving", flush=True)
"""
)
"""A script in the middle of a save of some seconds."""
HELD = SAVING.replace(
    'dp.init("prof_config")',
    """
from dynprof.backends.torch.torch_recording import TorchRecording
save = TorchRecording.save
def held(recording, path):
    while not os.path.exists("go on"):
        time.sleep(0.01)
    return save(recording, path)
TorchRecording.save = held
dp.init("prof_config")""",
).replace("500", "3")
"""A script in the middle of a save that ends when a file exists."""


def left_behind(job: RunningJob) -> list[str]:
    """Return the names of the files under the captures' folder, without unfinished captures."""
    found = [path for path in below(job.root / "to", "*") if path.is_file()]
    return sorted(path.name for path in found if ".saving" not in path.parent.name)


def the_manifest(job: RunningJob) -> Manifest:
    """Return the only manifest without waiting."""
    manifest, _ = job.capture()
    return manifest


def ends_saying(job: RunningJob, word: str) -> None:
    """Wait until the job prints a line with this word."""
    assert job.process.stdout
    assert word in job.process.stdout.readline()


def says_on_stderr(job: RunningJob, words: str) -> str:
    """Wait until the job prints this on stderr; return the line."""
    assert job.process.stderr
    for line in job.process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it never said: {words}")


def test_the_end_of_the_script_waits_for_a_save(tmp_path: Path) -> None:
    """The script has ended during a save: the process stays until the trace is whole."""
    with RunningJob(tmp_path, HELD) as job:
        said = says_on_stderr(job, "dynprof:")
        assert "dynprof: a capture is being saved; the process waits for it, up to 600 s" in said
        (tmp_path / "go on").touch()
        job.end()
        assert the_manifest(job).complete


def test_the_limit_of_the_wait_can_be_set(tmp_path: Path) -> None:
    """With a limit of 0 s the process ends at once, with a manifest and no trace."""
    with RunningJob(tmp_path, HELD, DYNPROF_EXIT_WAIT_S="0") as job:
        job.end()
        manifest = the_manifest(job)
        assert "saving was given up: it took more than 0 s, and the process" in manifest.reason
        assert left_behind(job) == ["rank_0.info.json"]
        assert "saving is given up" in job.log()


def test_a_second_ctrl_c_gives_up_at_once(tmp_path: Path) -> None:
    """The first Ctrl-C ends the script, the second the wait; no half file has a final name."""
    with RunningJob(tmp_path, SAVING + "steps(10**9)") as job:
        ends_saying(job, "saving")
        job.process.send_signal(signal.SIGINT)
        assert "Ctrl-C discards it" in says_on_stderr(job, "dynprof:")
        job.process.send_signal(signal.SIGINT)
        job.process.communicate()
        assert job.process.returncode == -signal.SIGINT
        assert "given up: Ctrl-C while the process ended" in the_manifest(job).reason
        assert left_behind(job) == ["rank_0.info.json"]


def test_a_process_that_exits_during_a_save_leaves_no_half_file(tmp_path: Path) -> None:
    """``os._exit()`` during a save leaves a manifest that says so, and no trace."""
    with RunningJob(tmp_path, SAVING + "os._exit(3)") as job:
        job.process.communicate()
        assert job.process.returncode == 3
        assert not below(job.root / "to", "*.gz")
        (text,) = [p.read_text() for p in below(job.root / "to", "*.info.json")]
        assert "began and has not ended" in text


def test_a_script_that_exits_on_sigterm_keeps_its_capture(tmp_path: Path) -> None:
    """An exit in a SIGTERM handler keeps the capture that is being saved."""
    script = HELD + "import signal; signal.signal(15, lambda *_: sys.exit(7))\n"
    with RunningJob(tmp_path, script + "print('ready', flush=True); steps(10**9)") as job:
        ends_saying(job, "saving")
        ends_saying(job, "ready")
        job.process.terminate()
        says_on_stderr(job, "a capture is being saved")
        (tmp_path / "go on").touch()
        job.process.communicate()
        assert job.process.returncode == 7
        assert the_manifest(job).complete


@pytest.mark.parametrize(
    ("module", "name", "function"),
    [
        ("requests.config_watcher", "Watcher", "stop"),
        ("session.session", "Session", "_wait_for_saving"),
    ],
)
def test_a_sigterm_as_the_process_ends_already_keeps_the_capture(
    tmp_path: Path, module: str, name: str, function: str
) -> None:
    """The capture is kept whenever SIGTERM comes, as from torchrun when another rank died.

    The process prints nothing about it: the end of that log must show what failed.
    """
    script = f"""
import signal; signal.signal(15, lambda *_: sys.exit(print("terminated", file=sys.stderr)))
from dynprof.{module} import {name}
original = {name}.{function}
def terminated(*args):
    {name}.{function} = original
    pathlib.Path("go on").touch()
    os.kill(os.getpid(), 15)
    original(*args)
{name}.{function} = terminated
sys.exit(3)
"""
    with RunningJob(tmp_path, HELD + script) as job:
        _, errors = job.process.communicate()
        assert "terminated" in errors
        assert "Traceback" not in errors
        assert below(job.root / "to", "*.gz")
        assert the_manifest(job).complete


def test_a_fork_in_the_middle_of_a_save(tmp_path: Path) -> None:
    """The child trains and ends by itself; the parent's capture is whole."""
    script = (
        HELD
        + """
if (child := os.fork()) == 0:
    steps(20)
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
pathlib.Path("go on").touch()
"""
    )
    with RunningJob(tmp_path, script) as job:
        job.end()
        manifest = the_manifest(job)
        assert manifest.complete
        assert manifest.pid == job.process.pid
