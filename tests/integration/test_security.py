"""Rights of a user who may edit the config: the rows of docs/threat-model.md."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.commands import dynprof
from tests.integration.running import LOOP, RunningJob, below, wait_for
from tests.users import MALLORY, as_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    """Return a running job of one rank."""
    with RunningJob(tmp_path, LOOP) as running:
        running.when("training", lambda status: status.state == "idle")
        yield running


def refusal(job: RunningJob) -> str:
    """Wait until an edit is refused; return why."""
    return "\n".join(job.when("a refusal", lambda status: bool(status.problems)).problems)


@pytest.mark.parametrize("place", ["../elsewhere", "sub/../../elsewhere", "{tmp}/elsewhere"])
def test_captures_do_not_leave_the_directory(tmp_path: Path, job: RunningJob, place: str) -> None:
    """A ``prof_dir`` outside is refused if others may write the config."""
    job.root.chmod(0o770)
    job.edit(prof_dir=place.replace("{tmp}", str(tmp_path)))
    text = refusal(job)
    assert f"{tmp_path}/elsewhere is outside of {job.root}" in text
    assert "init(prof_dirs=[...]) or DYNPROF_PROF_DIRS" in text
    assert not (tmp_path / "elsewhere").exists()
    code, output, _ = dynprof("validate", job.config)
    assert (code, "is outside of" in output) == (1, True)


@pytest.mark.parametrize("place", ["../elsewhere", "{tmp}/elsewhere"])
def test_captures_may_go_anywhere_if_only_the_user_writes_the_config(
    tmp_path: Path, job: RunningJob, place: str
) -> None:
    """Captures may go anywhere if only the job's user may write the config."""
    job.root.chmod(0o700)
    job.config.chmod(0o600)
    job.edit(prof_dir=place.replace("{tmp}", str(tmp_path)), active=1)
    status = job.when("a capture", lambda status: bool(status.last_capture))
    assert str(status.last_capture).startswith(f"{tmp_path}/elsewhere/step_")
    assert dynprof("validate", job.config)[0] == 0
    job.config.chmod(0o660)
    job.edit(prof_dir=place.replace("{tmp}", str(tmp_path)), active=2)
    assert f"users other than the job's user may write {job.config}" in refusal(job)


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_the_script_may_allow_another_place(tmp_path: Path, way: str) -> None:
    """Captures go to places that init() lists; the status names the commands for them."""
    place = tmp_path / "elsewhere"
    script, env = LOOP, {"DYNPROF_PROF_DIRS": f"/nowhere:{place}"}
    if way == "argument":
        script, env = LOOP.replace('"prof_config"', f'"prof_config", prof_dirs=["{place}"]'), {}
    with RunningJob(tmp_path, script, **env) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(prof_dir=f"{place}/deeper", active=1)
        status = job.when("a capture", lambda status: bool(status.last_capture))
        code, _, _ = dynprof("validate", job.config)
    assert code == 0
    assert load_manifest(tmp_path / f"{status.last_capture}").complete
    assert str(status.last_capture).startswith(f"{place}/deeper/step_")


def test_init_refuses_a_relative_place_for_captures(tmp_path: Path) -> None:
    """init() raises before training starts."""
    script = LOOP.replace('"prof_config"', '"prof_config", prof_dirs=["captures"]')
    with RunningJob(tmp_path, script) as job:
        _, errors = job.process.communicate()
    assert "entry 1 of prof_dirs cannot be used: it is neither an absolute path nor a URL" in errors


def test_a_link_on_the_way_of_a_capture_is_not_followed(tmp_path: Path, job: RunningJob) -> None:
    """A capture is refused if a folder in its path is a symbolic link."""
    (tmp_path / "victim").mkdir()
    (job.root / "captures").symlink_to(tmp_path / "victim")
    job.edit(prof_dir="captures/deeper")
    assert f"{job.root}/captures is a symbolic link, which is not followed" in refusal(job)
    assert list((tmp_path / "victim").iterdir()) == []


def test_links_of_the_jobs_user_outside_of_the_directory_are_followed(
    tmp_path: Path, job: RunningJob
) -> None:
    """A ``prof_dir`` may use links of the job's user."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    job.edit(prof_dir=f"{tmp_path}/link/deeper", active=1)
    job.when("a capture", lambda status: bool(status.last_capture))
    assert list((tmp_path / "real" / "deeper").glob("step_*"))


@pytest.mark.parametrize("name", ["log", "status"])
def test_a_link_in_the_place_of_log_or_status_is_not_followed(tmp_path: Path, name: str) -> None:
    """A link in place of log or status makes ``init()`` fail."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "prof_config").mkdir()
    (tmp_path / "prof_config" / name).symlink_to(tmp_path / "victim")
    with RunningJob(tmp_path, LOOP) as job:
        _, errors = job.process.communicate()
    assert f"prof_config/{name} is a symbolic link, which is not followed" in errors
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_link_planted_later_only_costs_the_log(tmp_path: Path, job: RunningJob) -> None:
    """Log lines are dropped and the job continues; the status has the edit's result."""
    victim = tmp_path / "victim"
    victim.mkdir()
    log, number = job.root / "log", 0
    while not log.is_symlink():
        number += 1
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # the job makes it again
            log.rename(job.root / f"old_{number}")
            log.symlink_to(victim)
    job.edit(active=1)
    job.when("a capture", lambda status: bool(status.last_capture))
    assert list(victim.iterdir()) == []


def test_a_config_that_is_a_link_is_read_only_where_allowed(tmp_path: Path) -> None:
    """A config that is a symbolic link is refused; the message names the argument."""
    (tmp_path / "prof_config").mkdir()
    (tmp_path / "real.json").write_text('{"activities": ["CPU"]}')
    with RunningJob(tmp_path, LOOP) as job:
        job.when("training", lambda status: status.state == "idle")
        job.config.unlink()
        job.config.symlink_to(tmp_path / "real.json")
        assert "call init(follow_symlinks=True) in the script" in refusal(job)


@pytest.mark.parametrize("watch", ["events", "poll"])
def test_a_configmap_of_kubernetes(tmp_path: Path, watch: str) -> None:
    """With ``follow_symlinks=True`` a ConfigMap's update, which swaps links, is an edit."""
    mount = tmp_path / "prof_config"
    mount.mkdir()
    publish(mount, 1, {"activities": ["CPU"]})
    (mount / "profiler_config.json").symlink_to("..data/profiler_config.json")
    script = LOOP.replace('"prof_config"', '"prof_config", follow_symlinks=True')
    with RunningJob(tmp_path, script, DYNPROF_WATCH=watch) as job:
        job.when("training", lambda status: status.state == "idle")
        assert "cannot be used" not in job.log()
        publish(mount, 2, {"activities": ["CPU"], "active": 2})
        manifest, _ = job.capture()
        assert manifest.request.config["active"] == 2


def test_a_link_to_a_configmap_elsewhere(tmp_path: Path) -> None:
    """A mount is read-only, so its file is linked into a directory that the job may write."""
    mount = tmp_path / "mount"
    mount.mkdir()
    publish(mount, 1, {"activities": ["CPU"]})
    (mount / "profiler_config.json").symlink_to("..data/profiler_config.json")
    (tmp_path / "prof_config").mkdir()
    (tmp_path / "prof_config/profiler_config.json").symlink_to(mount / "profiler_config.json")
    script = LOOP.replace('"prof_config"', '"prof_config", follow_symlinks=True')
    with RunningJob(tmp_path, script) as job:
        job.when("training", lambda status: status.state == "idle")
        publish(mount, 2, {"activities": ["CPU"], "active": 3})
        manifest, _ = job.capture()
        assert manifest.steps.recorded == 3
        code, output, _ = dynprof("validate", job.root)
        assert (code, "valid; requests 3 steps" in output) == (0, True)
        code, _, errors = dynprof("arm", job.root, "--active", 9)
        assert (code, "is a symbolic link" in errors) == (1, True)


def publish(mount: Path, version: int, config: dict[str, object]) -> None:
    """Publish as the kubelet does: make a folder, then rename ``..data`` onto the old link."""
    folder = mount / f"..version_{version}"
    folder.mkdir()
    (folder / "profiler_config.json").write_text(json.dumps(config))
    (mount / "..data_tmp").symlink_to(folder.name)
    (mount / "..data_tmp").rename(mount / "..data")


def test_a_world_writable_config_is_refused(job: RunningJob) -> None:
    """Each save is refused if the file or its directory is world-writable."""
    job.root.chmod(0o777)
    job.edit(active=1)
    assert "any user can replace the file; run chmod o-w on its directory" in refusal(job)
    job.edit(active=2)
    status = job.when("a second answer", lambda status: len(status.edits) == 2)
    assert [edit.outcome for edit in status.edits] == ["refused", "refused"]
    job.root.chmod(0o1777)
    job.edit(active=1)
    job.when("a capture", lambda status: bool(status.last_capture))


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o3777])
def test_a_directory_that_another_user_made_ends_init(tmp_path: Path, mode: int) -> None:
    """init() raises before training starts, with advice; nothing is written there."""
    root = tmp_path / "prof_config"
    root.mkdir()
    root.chmod(mode)
    MALLORY.own(root)
    with RunningJob(tmp_path, LOOP) as job:
        _, errors = job.process.communicate()
    assert (
        f"UnusablePathError: prof_config is not safe to watch: {root} belongs to uid 61002"
        in errors
    )
    assert "use a directory of this user's own, e.g. mkdir -m 700 ~/prof_config" in errors
    assert list(root.iterdir()) == []


@as_root
def test_a_config_that_another_user_renames_into_its_place(job: RunningJob) -> None:
    """A config in a folder that all users may write is refused. Training and later saves work."""
    job.root.chmod(0o1777)
    job.config.unlink()
    evil = job.root / "evil"
    evil.write_text('{"active": 1}')
    MALLORY.own(evil)
    evil.rename(job.config)
    assert "the file belongs to uid 61002, which may not request captures" in refusal(job)
    job.config.unlink()
    job.config.write_text('{"active": 1, "activities": ["CPU"]}')
    job.when("a capture", lambda status: bool(status.last_capture))


@as_root
def test_a_directory_that_another_user_puts_in_the_place_of_the_jobs(
    tmp_path: Path, job: RunningJob
) -> None:
    """The owner of the parent folder could do that: the config is refused."""
    job.root.rename(tmp_path / "before")
    job.root.mkdir()
    job.root.chmod(0o770)
    (job.root / "profiler_config.json").write_text('{"active": 1}')
    MALLORY.own(job.root, job.config)
    text = f"the file is in {job.root}, which belongs to uid 61002"
    wait_for("the refusal", lambda: text in said_below(tmp_path) or None)
    assert below(tmp_path, "step_*") == []


def said_below(folder: Path) -> str:
    """Return the text of all logs and status files below a folder."""
    paths = [*below(folder, "*.log"), *below(folder, "rank_*.json")]
    return "".join(path.read_text() for path in paths)


def test_control_characters_of_a_config_are_escaped(tmp_path: Path, job: RunningJob) -> None:
    """Log and commands escape the control characters of the config's values."""
    nasty = "\x1b[2J\x1b]0;owned\x07\u202e"
    job.edit(**{nasty: 1, "activities": [nasty], "metadata": {nasty: nasty}})
    refusal(job)
    wait_for("the log", lambda: "refused" in job.log() or None)
    said = [job.log()]
    for command in (["validate", job.config], ["status", job.root], ["log", job.root]):
        _, output, errors = dynprof(*command)
        said += [output, errors]
    _, _, errors = dynprof("arm", job.root, "--activities", nasty, "--wait")
    text = "\n".join([*said, errors])
    assert "\\x1b" in text or "\\u001b" in text
    assert not {character for character in text if not character.isprintable()} - {"\n"}


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """Log, status, captures and tables are neither readable nor writable by others."""
    both = {"export_type": ["text", "db"]}
    with RunningJob(tmp_path, "import os\nos.umask(0)\n" + LOOP) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=1, analyse=True, experimental_config=both)
        job.capture()
        wait_for("the analysis", lambda: "analysed" in job.log() or None)
        assert below(job.root, "*.parquet")
        modes = {path: path.stat().st_mode & 0o007 for path in below(job.root, "*")}
    assert {path for path, mode in modes.items() if mode} == set()
