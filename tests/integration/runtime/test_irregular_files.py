"""Irregular files that a group member puts among dynprof's files: no process hangs or reads on."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import Manifest
from dynprof.cli.outcome import MAX_SKIPPED
from dynprof.config import editing
from dynprof.runtime.job_files import skipped_below
from dynprof.runtime.layout import Layout, host_name
from dynprof.runtime.safe_write import MARK
from dynprof.runtime.stale_folders import OLD_S
from tests import processes
from tests.fake_job import Job
from tests.integration.commands import dynprof
from tests.integration.running import LOOP, RunningJob, wait_for
from tests.rank_traces import write

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {
    "FIFO": "a named pipe (FIFO)",
    "socket": "a socket",
    "directory": "a directory",
    "device": "a device",
    "link": "a named pipe (FIFO)",
}
LINE = "2026-01-31 03:00:00.123 INFO    rank 0  a line\n"


def plant(path: Path, kind: str) -> Path:
    """Put something that is not a regular file at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        os.mkfifo(path.with_name("fifo"))
        path.symlink_to("fifo")
    else:
        folder = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{folder}/{path.name}")  # its name has at most 108 bytes
        os.close(folder)
    return path


def run(code: str, *arguments: object) -> str:
    """Run code in its own process; return its output, or its exit code."""
    done = processes.run(
        [sys.executable, "-c", code, *map(str, arguments)],
    )
    return done.stdout + done.stderr


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of file to plant."""
    return str(request.param)


def test_among_the_logs(tmp_path: Path) -> None:
    """``dynprof log`` names the first and prints the others, including rotated ones."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "dp_a_9_rank_9.log").write_text(LINE)
    planted = {}
    for number, kind in enumerate(KINDS):
        planted[kind] = plant(tmp_path / "log" / f"dp_a_{number}_rank_{number}.log", kind)
        aside = tmp_path / "log" / f"dp_a_{number}_rank_{number}.log.1"
        plant(tmp_path / "log" / "old" / f"{number}" / "x", kind).rename(aside)
    skipped = skipped_below(tmp_path / "log")
    for kind, path in planted.items():
        links = kind in ("device", "link")  # both are planted as a link
        what = "a symbolic link" if links else KINDS[kind]
        assert f"{path} is {what}" in skipped
        assert f"{path}.1 is {what}" in skipped
    code, output, errors = dynprof("log", tmp_path)
    assert (code, output) == (0, LINE)
    lines = [*skipped[:MAX_SKIPPED], f"and {len(skipped) - MAX_SKIPPED} more"]
    assert errors.splitlines() == [f"skipped: {line}" for line in lines]


def test_among_the_status_files(tmp_path: Path) -> None:
    """``status``, ``validate`` and ``arm`` work without them."""
    dynprof("init", tmp_path)
    for number, kind in enumerate(KINDS):
        plant(tmp_path / "status" / f"rank_{number}.json", kind)
    assert dynprof("status", tmp_path)[0] == 3
    assert dynprof("validate", tmp_path)[0] == 0
    assert dynprof("arm", tmp_path, "--active", 2)[0] == 3


def test_in_the_place_of_the_config(tmp_path: Path, kind: str) -> None:
    """The commands refuse it with the reason."""
    dynprof("init", tmp_path)
    (tmp_path / "profiler_config.json").unlink()
    plant(tmp_path / "profiler_config.json", kind)
    words = "is a symbolic link" if kind in ("device", "link") else f"{KINDS[kind]} is in"
    for command in (["validate", tmp_path], ["arm", tmp_path, "--active", 2]):
        code, output, errors = dynprof(*command)
        assert (code, words in output + errors) == (1, True)


def test_in_the_place_of_a_manifest(tmp_path: Path, kind: str) -> None:
    """The trace is read without it."""
    write(tmp_path, 0)
    plant(tmp_path / "info" / "rank_0.info.json", kind)
    code, output, _ = dynprof("top", tmp_path)
    assert (code, "aten::mm" in output) == (0, True)


def test_in_the_place_of_a_manifest_that_was_just_written(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check for the manifest continues; the status names no such capture."""

    def swap(manifest: Manifest, path: Path) -> None:
        path.unlink()
        plant(path, kind)

    monkeypatch.setattr(Manifest, "save", swap)
    job = Job(tmp_path)
    job.edit(active=1)
    job.step(2)
    assert (job.state, job.session.status().last_capture) == ("idle", None)


def test_in_the_place_of_a_trace(tmp_path: Path) -> None:
    """An irregular file is not a trace; another one next to it is read."""
    for kind in KINDS:
        planted = plant(tmp_path / kind / "a.pt.trace.json", kind)
        assert dynprof("top", planted)[0] == 2
        assert dynprof("view", planted, "--no-browser")[0] == 2
        text = run("import sys; from dynprof.analysis.__main__ import main; main()", planted)
        assert "is a symbolic link" in text or f"{KINDS[kind]} is in the place of the" in text
    write(tmp_path, 0)
    code, output, _ = dynprof("analyse", tmp_path)
    assert (code, "rank0.pt/report.html" in output) == (0, True)


def test_in_the_place_of_a_table(tmp_path: Path) -> None:
    """Earlier tables of a rank are not read; the report says what to do."""
    for rank in (0, 1):
        write(tmp_path, rank)
    assert dynprof("analyse", tmp_path)[0] == 0
    table = tmp_path / "analysis" / "rank1.pt" / "parquet" / "collectives.parquet"
    code = "import sys, pathlib; from dynprof.analysis.runs.many_traces import read_ranks\n"
    code += "from dynprof.analysis.runs.remote_files import Workspace\n"
    code += "place = pathlib.Path(sys.argv[1])\n"
    code += "read_ranks(sorted(place.glob('*.json')), Workspace(place))"
    table.unlink()
    for kind in KINDS:
        plant(table, kind)
        text = run(code, tmp_path)
        links = kind in ("device", "link")
        why = "it is a symbolic link" if links else f"{KINDS[kind]} is in the place"
        assert f"run dynprof analyse again: {table}: {why}" in text
        table.rename(table.with_name(kind))


def test_in_the_place_of_the_schema(tmp_path: Path, kind: str) -> None:
    """A job that starts replaces it; a directory there ends init() with an error message."""
    plant(tmp_path / "prof_config" / "profiler_config.schema.json", kind)
    with RunningJob(tmp_path, LOOP) as job:
        if kind == "directory":
            _, errors = job.process.communicate(timeout=60)
            assert "Is a directory" in errors
        else:
            job.when("training", lambda status: status.state == "idle")
            assert "active" in (job.root / "profiler_config.schema.json").read_text()


def test_in_the_place_of_the_jobs_log(tmp_path: Path, kind: str) -> None:
    """The lines are dropped; the status continues, and captures are made."""
    wait = 'import os\nwhile not os.path.exists("go"):\n    time.sleep(0.01)\ndp.init'
    with RunningJob(tmp_path, LOOP.replace("dp.init", wait)) as job:
        log = Layout(job.root, 0, host_name(), job.process.pid).log
        plant(log, kind)
        (tmp_path / "go").touch()
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=1)
        saved = job.when("a capture", lambda status: bool(status.last_capture))
        job.when("a heartbeat after it", lambda status: status.heartbeat > saved.heartbeat)
        assert not log.is_file()


def test_among_the_leftovers(tmp_path: Path, kind: str) -> None:
    """A job that starts leaves it there, and removes leftovers next to it."""
    root = tmp_path / "prof_config"
    host = host_name()
    planted = plant(root / f".{host}_1.rank0.recording", kind)
    behind = root / f".{host}_2.rank0.recording"
    behind.mkdir(mode=0o700)
    (behind / MARK).touch()
    (behind / "half.json").write_text("[")
    long_ago_s = time.time() - 10 * OLD_S
    for path in (planted, behind):
        os.utime(path, (long_ago_s, long_ago_s), follow_symlinks=False)
    with RunningJob(tmp_path, LOOP) as job:
        wait_for("the leftover to go", lambda: None if behind.exists() else True)
        job.when("training", lambda status: status.state == "idle")
    assert os.path.lexists(planted)


def test_a_command_waits_for_a_held_lock_with_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command waits for the lock with a timeout, and changes nothing."""
    monkeypatch.setattr(editing, "LOCK_TIMEOUT_S", 0.1)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        with (
            pytest.raises(OSError, match="another process has held its lock"),
            editing.locked(tmp_path),
        ):
            pytest.fail("it was not locked")
    finally:
        os.close(descriptor)
    with editing.locked(tmp_path):
        pass
