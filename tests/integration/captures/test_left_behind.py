"""Captures that a killed job has not sent."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from tests import processes
from tests.integration.buckets import PLACE, UNTIL_ENOUGH, Bucket, end, job, log
from tests.integration.commands import dynprof
from tests.integration.running import LOOP, RunningJob, below, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def killed(folder: Path, bucket: Bucket) -> Path:
    """Kill a job whose capture has waited to be sent for an hour; return the capture's folder."""
    with job(folder, bucket) as running:
        running.edit(prof_dir=PLACE, active=2)
        wait_for("the warning", lambda: "is not in s3://runs/job/" in log(running.root) or None)
        running.process.kill()
        running.process.wait()
    return an_hour_old(running.root)


def an_hour_old(root: Path) -> Path:
    """Set the only waiting capture's age to an hour, beyond that of captures in progress."""
    (manifest,) = root.glob("outgoing/*/step_*/info/rank_0.info.json")
    then = manifest.stat().st_mtime - 3600
    os.utime(manifest, (then, then))
    return manifest.parent.parent


def test_captures_of_a_live_job_are_left_to_it(tmp_path: Path, bucket: Bucket) -> None:
    """A live job's capture is left to it, however old; other jobs of the directory are silent."""
    with job(tmp_path, bucket) as one:
        one.edit(prof_dir=PLACE, active=2)
        wait_for("the warning", lambda: "is not in s3://runs/job/" in log(one.root) or None)
        folder = an_hour_old(one.root)
        said = dynprof("status", one.root)[1]
        with RunningJob(
            tmp_path, UNTIL_ENOUGH.replace('prof_config"', 'prof_config", rank=1'), **bucket.env
        ):
            wait_for("both", lambda: log(one.root).count("watches") >= 2 or None)
            time.sleep(1)
            assert "never sent" not in log(one.root)
    assert "no job sends" not in said
    assert (folder / "info/rank_0.info.json").is_file()


def test_captures_of_a_killed_job_are_named_with_the_command_that_sends_them(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next job's log and status name the command. It sends everything, and no file stays."""
    folder = killed(tmp_path, bucket)
    trace = next(folder.glob("*.json.gz")).read_bytes()
    command = f"python -I -m dynprof.captures.sender {folder} {PLACE}/{folder.name}"
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "prof_config"
    with bucket.served():
        with job(tmp_path, bucket) as running:
            wait_for("a warning", lambda: f"run {command}" in log(running.root) or None)
            end(running)
        assert f"; to send it, run {command}" in dynprof("status", root)[1]
        done = processes.run([sys.executable, *command.split()[1:]])
        assert done.returncode == 0, done.stderr
        found = bucket.objects()
    assert trace in found.values()
    assert f"job/{folder.name}/info/rank_0.info.json" in found
    assert not (root / "outgoing").exists()
    assert "no job sends" not in dynprof("status", root)[1]


def test_ctrl_c_while_a_capture_is_sent_says_where_it_is(tmp_path: Path, bucket: Bucket) -> None:
    """Ctrl-C ends the wait for a store that does not answer; the log names the capture's place."""
    with job(tmp_path, bucket) as running:
        running.edit(prof_dir=PLACE, active=2)
        wait_for("the capture", lambda: "put together in" in log(running.root) or None)
        (tmp_path / "enough").touch()
        wait_for("the wait", lambda: "the process waits for it" in log(running.root) or None)
        running.process.send_signal(signal.SIGINT)
        running.process.communicate()
    (info,) = running.root.glob("outgoing/*/step_*/info")
    place = f"the capture in {info.parent} has not arrived in {PLACE}/{info.parent.name}"
    assert f"{place}: it may still arrive, otherwise it stays there" in log(running.root)


def test_status_lists_captures_in_a_scratch_directory(tmp_path: Path, bucket: Bucket) -> None:
    """The job's status names its scratch directory, which may be anywhere."""
    scratch = tmp_path / "scratch"
    with job(tmp_path, bucket, allowed=f"{scratch}:{PLACE}") as running:
        running.edit(prof_dir=PLACE, active=2, storage={"scratch_dir": str(scratch), "retry_s": 0})
        running.when("the capture", lambda status: bool(status.last_capture))
        (manifest,) = below(scratch, "rank_0.info.json")
        os.utime(manifest, (1e9, 1e9))
        said = dynprof("status", running.root)[1]
    folder = manifest.parent.parent
    assert f"python -I -m dynprof.captures.sender {folder} {PLACE}/{folder.name}" in said


def rank(folder: Path, number: int) -> RunningJob:
    """Start a rank of a job of two, whose config only its user may change."""
    (folder / "prof_config").mkdir(mode=0o700, exist_ok=True)
    return RunningJob(folder, LOOP, RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")


def is_told(job: RunningJob, command: str) -> bool | None:
    """Return True if a job's log names a command, otherwise None."""
    return f"run {command}" in job.log() or None


def test_captures_in_an_unlisted_scratch_directory_are_found(tmp_path: Path) -> None:
    """All ranks are killed while one waits for its turn: status and later jobs' logs say so."""
    scratch = tmp_path / "scratch"
    with rank(tmp_path, 0) as first, rank(tmp_path, 1) as second:
        for number, one in enumerate((first, second)):
            one.when("training", lambda status: status.state == "idle", number)
        first.config.chmod(0o600)
        settings = ("--active", 2, "--scratch-dir", scratch, "--spread-s", 3600)
        assert dynprof("arm", first.root, *settings)[0] == 0
        wait_for("the wait", lambda: "put together in" in second.log(1) or None)
        for one in (first, second):
            one.process.kill()
            one.process.wait()
    (manifest,) = scratch.glob("*.rank1/step_*/info/rank_1.info.json")
    os.utime(manifest, (1e9, 1e9))
    folder, root = manifest.parent.parent, tmp_path / "prof_config"
    command = f"python -I -m dynprof.captures.sender {folder} {root}/{folder.name}"
    assert f"; to send it, run {command}" in dynprof("status", root)[1]
    for _ in range(2):
        with rank(tmp_path, 0) as later:
            wait_for("a warning", functools.partial(is_told, later, command))
    done = processes.run([sys.executable, *command.split()[1:]])
    assert done.returncode == 0, done.stderr
    assert (root / folder.name / "info" / "rank_1.info.json").is_file()
    assert "no job sends" not in dynprof("status", root)[1]
