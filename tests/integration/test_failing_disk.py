"""Failing files and directories: rows of docs/guarantees.md."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from dynprof.config.editing import write_starter_files
from dynprof.runtime.layout import CONFIG_NAME
from dynprof.runtime.safe_write import write_atomic
from tests.integration.running import below, wait_for
from tests.integration.troubled import (
    WITHOUT_PRIVILEGE,
    TroubledJob,
    mounted_over,
    small_disk,
)
from tests.processes import DYNPROF, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


def test_disk_full_while_saving(tmp_path: Path) -> None:
    """A real disk of 1 MB fills up under libkineto: a manifest says so, and no trace is left."""
    disk = tmp_path / "prof_config" / "to"
    with small_disk(disk, "1m"), TroubledJob(tmp_path) as job:
        limits = {"min_free_disk_mb": 0}
        job.edit(active=100, with_stack=True, prof_dir="to", limits=limits)
        manifest, trace = job.capture()
        job.ends_unharmed()
        assert trace == {}
        left = sorted(path.name for path in below(disk, "*") if path.is_file())
        assert left == ["rank_0.info.json"]
        assert "saving failed: the disk is full: 0 MB are free where the" in manifest.reason
        assert "the disk is full" in job.log()


def test_a_read_only_directory(tmp_path: Path) -> None:
    """Captures are refused with the directory's name; with permissions back, all works again."""
    with TroubledJob(tmp_path, WITHOUT_PRIVILEGE) as job:
        for folder in (job.root, job.root / "log", job.root / "status"):
            folder.chmod(0o500)
        job.edit(active=2)
        said = ("may not write in", "the status file cannot be written")
        wait_for("the log", lambda: all(text in job.log() for text in said) or None)
        for folder in (job.root, job.root / "log", job.root / "status"):
            folder.chmod(0o770)
        job.edit(active=3)
        manifest, _ = job.capture(2)
        assert manifest.complete
        job.ends_unharmed()


def remove(folder: Path) -> None:
    """Remove a folder that the job may be writing into."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def replace_with_unwritable(folder: Path) -> None:
    """Make a folder again, unwritable, even if the job makes it first."""
    while True:
        remove(folder)
        with contextlib.suppress(FileExistsError):
            return folder.mkdir(mode=0o500)


BEATS = """
from dynprof.journal import journal, status
journal.TICK_S = journal.HEARTBEAT_S = 0.2
write_status, beats = status.StatusFile.write, 0
def write_and_tell(self, status):
    global beats
    write_status(self, status)
    beats += 1
    with open("beats.new", "w") as file:
        json.dump([beats, status.edits[-1].text if status.edits else ""], file)
    os.replace("beats.new", "beats")
status.StatusFile.write = write_and_tell
"""
"""A job with frequent statuses that notes each write and the newest answer elsewhere."""


def told(job: TroubledJob) -> tuple[int, str]:
    """Return the number of a job's heartbeats, and its newest answer."""
    path = job.root.parent / "beats"
    beats, answer = json.loads(path.read_text()) if path.exists() else (0, "")
    return beats, answer


def heartbeats(job: TroubledJob, count: int) -> None:
    """Wait for this number of heartbeats; right after one the job briefly writes nothing."""
    before = told(job)[0]
    wait_for("heartbeats", lambda: told(job)[0] >= before + count or None)


def notices(job: TroubledJob, problem: str) -> None:
    """Wait until a job has answered that its config is unreadable, and tried to write that."""
    wait_for(problem, lambda: problem in told(job)[1] or None)
    heartbeats(job, 3)


def test_a_removed_directory(tmp_path: Path) -> None:
    """The folder is not made again by dynprof; after its return, edits are served."""
    with TroubledJob(tmp_path, BEATS) as job:
        text = job.config.read_text()
        heartbeats(job, 1)
        remove(job.root)
        notices(job, "the file is gone")
        assert not job.root.exists()
        job.root.mkdir(mode=0o770)
        job.config.write_text(json.dumps({**json.loads(text), "active": 2}))
        manifest, _ = job.capture(2)
        assert manifest.complete
        job.ends_unharmed()


def test_a_directory_removed_inside_a_window(tmp_path: Path) -> None:
    """The folder is not made again here either: the capture is lost, and the next one is saved."""
    state = tmp_path / "state"
    each = f"open({str(state)!r}, 'w').write(dp.status().state)"
    with TroubledJob(tmp_path, each=each) as job:
        text = job.config.read_text()
        job.edit(active=100)
        job.when("the window", lambda status: status.state == "recording")
        remove(job.root)
        wait_for("the end of the window", lambda: state.read_text() == "idle" or None)
        assert not job.root.exists()
        job.root.mkdir(mode=0o770)
        job.config.write_text(json.dumps({**json.loads(text), "active": 2}))
        answers = job.when(
            "the next one", lambda status: any(a.outcome == "saved" for a in status.edits)
        ).edits
        lost = answers[0]
        assert (lost.number, lost.outcome) == (1, "failed")
        assert "the directory of the config is gone" in lost.text
        job.ends_unharmed()


def test_a_directory_replaced_by_a_file(tmp_path: Path) -> None:
    """Log and status cannot be written; training continues, and dynprof too after the repair."""
    with TroubledJob(tmp_path, BEATS) as job:
        heartbeats(job, 1)
        job.root.rename(tmp_path / "aside")
        job.root.touch()
        notices(job, "the file cannot be read: Not a directory")
        assert job.root.is_file()
        job.still_trains()
        config = tmp_path / "aside" / job.config.name
        config.write_text(json.dumps({**json.loads(config.read_text()), "active": 2}))
        job.root.unlink()
        config.parent.rename(job.root)
        manifest, _ = job.capture(2)
        assert (manifest.complete, manifest.steps.recorded) == (True, 2)
        job.answer(2, "saved")
        assert "request 2: saved" in job.log()
        job.ends_unharmed()


def test_an_unmounted_directory(tmp_path: Path) -> None:
    """The disk below the directory disappears and returns empty."""
    with small_disk(tmp_path / "prof_config", "50m"), TroubledJob(tmp_path, BEATS) as job:
        text = job.config.read_text()
        assert run(["umount", "-l", job.root]).returncode == 0
        notices(job, "the file is gone")
        assert not job.config.exists()
        with small_disk(job.root, "50m"):
            small = {"limits": {"min_free_disk_mb": 1}}
            job.config.write_text(json.dumps({**json.loads(text), **small}))
            manifest, _ = job.capture(2)
            assert manifest.complete
            job.ends_unharmed()


def test_a_config_that_is_a_mounted_file(tmp_path: Path) -> None:
    """``arm`` writes in place there; log and commands name edits that cannot be seen there."""
    config, outside = tmp_path / "prof_config" / CONFIG_NAME, tmp_path / "outside"
    config.parent.mkdir()
    write_starter_files(config.parent, ("CPU",))
    shutil.copy(config, outside)
    with mounted_over(outside, config), TroubledJob(tmp_path) as job:
        said = "is a mount of its own: a file that replaces it outside"
        armed = run([*DYNPROF, "arm", job.root, "--active", "2", "--wait"])
        assert (armed.returncode, said in armed.stderr, said in job.log()) == (0, True, True)
        assert json.loads(outside.read_text())["active"] == 2
        assert job.capture()[0].complete
        write_atomic(outside, outside.read_text())
        assert "only the old file is seen here" in run([*DYNPROF, "status", job.root]).stdout
        job.ends_unharmed()


def test_a_config_deleted_inside_a_window(tmp_path: Path) -> None:
    """The window continues to its last step; the log names the deleted file."""
    with TroubledJob(tmp_path) as job:
        job.edit(active=100)
        job.when("the window", lambda status: status.state == "recording")
        job.config.unlink()
        manifest, _ = job.capture()
        assert (manifest.complete, manifest.steps.recorded) == (True, 100)
        text = "the file is gone; nothing changes until it is saved again"
        wait_for("the log", lambda: text in job.log() or None)
        job.ends_unharmed()


@pytest.mark.parametrize("name", ["log", "status"])
def test_an_unwritable_log_or_status(tmp_path: Path, name: str) -> None:
    """Captures are made all the same, and the writable file names the other one."""
    with TroubledJob(tmp_path, WITHOUT_PRIVILEGE) as job:
        replace_with_unwritable(job.root / name)
        job.edit(active=2)
        manifest, _ = job.capture()
        assert manifest.complete
        if name == "status":
            text = "the status file cannot be written: permission denied"
            wait_for("the log", lambda: text in job.log() or None)
        else:
            job.answer(1, "saved")
        job.ends_unharmed()
