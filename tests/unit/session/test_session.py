"""The session: edits in, windows and captures out, with a fake profiler."""

from __future__ import annotations

import json
import os
import pwd
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from dynprof.errors import Problem
from dynprof.requests.request import Edit
from tests.fake_job import Job
from tests.users import MALLORY, as_root

if TYPE_CHECKING:
    from pathlib import Path


def test_an_edit_gives_exactly_the_next_steps(job: Job) -> None:
    """A window begins at the next step: two steps of warm-up, then three recorded ones."""
    job.step(5)
    job.edit(warmup=2, active=3)
    assert job.state == "waiting"
    job.step()
    assert job.state == "warmup"
    job.step(2)
    assert job.state == "recording"
    job.step(3)
    (manifest,) = job.manifests()
    assert job.backend.recordings[0].steps == [8, 9, 10]
    counted = {"first": 8, "last": 10, "recorded": 3, "warmup": 2}
    assert manifest.steps.model_dump() == {**counted, "source": "dp.step()"}
    assert manifest.complete
    assert manifest.reason == ""
    job.step()
    assert not job.session.inbox.due
    assert job.state == "idle"


def test_a_capture_has_trace_manifest_and_metadata(job: Job) -> None:
    """The folder has trace, manifest and metadata, under names that all ranks can share."""
    job.edit(active=2, metadata={"run": 7})
    job.step(3)
    (folder,) = [p for p in job.root.iterdir() if p.name.startswith("step_")]
    assert folder.name == "step_1-2_20231114T221321Z"
    (manifest,) = job.manifests()
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert names == [manifest.trace, "info/rank_0.info.json", "profiler_metadata.json"]
    assert manifest.trace
    assert manifest.trace.startswith("host_42.rank0.")
    assert manifest.trace.endswith(".fake.trace.json.gz")
    assert json.loads((folder / "profiler_metadata.json").read_text()) == {"run": 7}
    assert manifest.request.config == {"active": 2, "metadata": {"run": 7}}
    assert manifest.trace_bytes == (folder / manifest.trace).stat().st_size
    assert job.session.status().last_capture == f"{folder.name}/info/rank_0.info.json"


def test_losses_that_only_saving_finds_are_logged(job: Job) -> None:
    """A loss is logged once, and separately from an early close, which has its own line."""
    job.backend.cut = ("the oldest are lost",)
    job.edit(active=2)
    job.step(3)
    warning = "its capture is not complete: the oldest are lost"
    lines = job.log().splitlines()
    assert f"request 1: {warning}" in lines
    job.edit(active=9)
    job.step(3)
    job.edit(cancel=True)
    job.step()
    lines = job.log().splitlines()
    assert f"request 2: {warning}" in lines
    assert sum("cancelled by request 3" in line for line in lines if "request 2:" in line) == 1
    assert job.manifests()[1].reason == "cancelled by request 3; the oldest are lost"
    job.backend.cut = ()
    job.edit(active=9)
    job.step(3)
    job.edit(cancel=True)
    job.step()
    assert "not complete" not in job.log()


def test_an_invalid_edit_changes_nothing_that_runs(job: Job) -> None:
    """A window continues through a bad edit; the problems are in the status."""
    job.edit(active=3)
    job.step(2)
    job.edit(active=0, activties=["CPU"])
    status = job.session.status()
    assert status.state == "recording"
    assert any('did you mean "activities"' in text for text in status.problems)
    job.step(2)
    assert [m.complete for m in job.manifests()] == [True]
    job.edit(active=1)
    assert job.session.status().problems == ()


def test_the_newest_edit_waits_its_turn(job: Job) -> None:
    """Of two edits during a window the newer is served after it, the other is superseded."""
    job.edit(active=3)
    job.step(2)
    job.edit(active=7)
    job.edit(active=2)
    job.step(10)
    assert [m.steps.recorded for m in job.manifests()] == [3, 2]
    log = job.log()
    assert "request 2: superseded by request 3" in log
    behind = "opens at the next step, once the open window (request 1 for steps 1-3) is closed"
    assert behind in log


def test_start_opens_at_once(job: Job) -> None:
    """``start()`` takes the config's file or another, ignores its start step, opens at once."""
    job.step(7)
    (job.root / "profiler_config.json").write_text('{"active": 2, "start_step": 99}')
    job.session.start(None)
    assert job.state == "recording"
    job.session.start(None)
    job.step(2)
    assert job.backend.recordings[0].steps == [7, 8]
    assert len(job.backend.recordings) == 1
    job.session.start(job.root / "missing.json")
    assert "there is no file" in job.session.status().problems[0]


def test_start_with_a_file_of_others_keeps_captures_in_their_place(
    job: Job, tmp_path: Path
) -> None:
    """A file that others may change decides what is recorded, but not where."""
    job.root.chmod(0o700)
    config = job.root / "profiler_config.json"
    config.write_text("{}")
    config.chmod(0o600)
    shared = tmp_path / "shared.json"
    shared.write_text(json.dumps({"active": 1, "prof_dir": f"{tmp_path}-elsewhere"}))
    shared.chmod(0o600)
    job.session.start(shared)
    assert job.session.status().problems == ()
    job.step(2)
    shared.chmod(0o620)
    job.session.start(shared)
    (problem,) = job.session.status().problems
    assert f"users other than the job's user may write {shared}" in problem


@as_root
def test_start_with_a_file_in_a_directory_of_another_user(job: Job, shared_tmp: Path) -> None:
    """The script has named that file; the job's own config must belong to the job's user."""
    shared = shared_tmp / "shared.json"
    shared.write_text('{"active": 1}')
    MALLORY.own(shared, shared_tmp)
    job.session.start(shared)
    assert job.session.status().problems == ()
    job.step(2)
    (manifest,) = job.manifests()
    assert manifest.complete


def test_stop_closes_at_once(job: Job) -> None:
    """``stop()`` keeps the whole steps so far."""
    job.edit(active=100)
    job.step(4)
    job.session.stop()
    (manifest,) = job.manifests()
    assert (manifest.reason, manifest.steps.recorded) == ("stopped by the script", 3)
    job.session.stop()


def test_two_processes_of_one_rank_give_a_warning(job: Job, tmp_path: Path) -> None:
    """A second process with the same rank and directory warns."""
    job.session.begin()
    job.session.end("a test")
    status = job.session._process.layout.status
    alive = {**json.loads(status.read_text()), "state": "idle", "pid": 7, "host": "node3"}
    status.write_text(json.dumps(alive))
    other = Job(tmp_path)
    other.session.begin()
    other.session.end("a test")
    log = (tmp_path / "log" / "dp_host_42_rank_0.log").read_text()
    assert log.count("process 7 on node3 is rank 0 in this directory too") == 1


def test_a_forked_child_releases_the_recording(job: Job) -> None:
    """The child stops its copy of an open recording, and touches nothing else."""
    job.edit(active=5)
    job.step()
    job.session.leave_child()
    assert job.backend.recordings[0].calls[-1] == "abandon"


def test_a_refused_edit_does_not_touch_a_waiting_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk of another prof_dir does not affect the waiting request."""
    job.edit(start_step=3)
    monkeypatch.setattr("dynprof.session.edit_handler.free_disk_mb", lambda _: 10.0)
    job.edit(prof_dir="elsewhere", start_step=3)
    job.step(4)
    assert job.manifests()[0].complete


def test_the_step_can_be_set(job: Job) -> None:
    """A resumed job sets its step; an open window closes first."""
    job.session.set_step(1200)
    job.edit(active=5)
    job.step(2)
    assert job.backend.recordings[0].steps == [1201, 1202]
    job.session.set_step(3000)
    assert "from 1202 to 3000" in job.manifests()[0].reason
    assert job.session.inbox.step == 3000


def test_the_end_of_the_job_keeps_an_open_window(slow_job: Job) -> None:
    """The open window is closed, marked incomplete and saved; a waiting request is named."""
    slow_job.edit(active=50)
    slow_job.step(4)
    slow_job.edit(active=1)
    slow_job.session.end("the process ended")
    (manifest,) = slow_job.manifests()
    assert (manifest.complete, manifest.reason) == (False, "the process ended")
    assert manifest.trace
    assert slow_job.state == "stopped"
    assert "request 2: not served, the process ended" in slow_job.log()
    slow_job.session.end("again")


def test_a_prof_dir_that_is_a_file_is_a_refusal(job: Job) -> None:
    """A capture that cannot be saved is not begun."""
    (job.root / "taken").touch()
    for prof_dir, words in (
        ("taken", "taken is not a directory"),
        ("taken/below", "taken is not a directory"),
        ("x" * 300, "File name too long"),
    ):
        job.edit(prof_dir=prof_dir)
        job.step(3)
        assert words in job.session.status().problems[0]
    assert job.backend.recordings == []


def test_an_unreadable_file_is_a_refusal(job: Job) -> None:
    """The reason of the failed read is the reported problem."""
    job.session.handle(Edit(b"", job.clock.wall, (Problem("everybody may write the file"),)))
    assert job.session.status().problems == ("everybody may write the file",)


@pytest.mark.parametrize("has_account", [True, False])
def test_the_log_names_another_owner_of_a_saved_config(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, has_account: bool
) -> None:
    """The log has the uid, and the name if there is one; the job's own user is not named."""
    other = os.geteuid() + 1
    names = {other: SimpleNamespace(pw_name="alice")} if has_account else {}
    monkeypatch.setattr(pwd, "getpwuid", names.__getitem__)
    for raw, owner in ((b"{}", os.geteuid()), (b'{"cancel": true}', other), (b"{,", other)):
        job.session.handle(Edit(raw, job.clock.wall, owner=owner))
        job.step(3)
    named = f"alice (uid {other})" if has_account else f"uid {other}"
    said = [line for line in job.log().splitlines() if "belongs to" in line]
    assert len(said) == 2
    for number, line in zip((2, 3), said, strict=True):
        assert line.endswith(f"request {number}: the config belongs to {named}")
