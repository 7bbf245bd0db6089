"""Captures that no process will send any more."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.deliveries import left_behind
from dynprof.runtime.stale_folders import folder_lock, note_scratch
from tests.left_captures import FOLDER, left
from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_left_capture_is_named_with_the_command_that_sends_it(tmp_path: Path) -> None:
    """The manifest has the destination, and the command names it."""
    folder = left(tmp_path / "outgoing", prof_dir="captures")
    (one,) = left_behind(tmp_path)
    assert one.folder == folder
    assert (
        one.command == f"python -I -m dynprof.captures.sender {folder} {tmp_path}/captures/{FOLDER}"
    )


def test_command_sends_a_left_capture_of_a_role(tmp_path: Path) -> None:
    """A capture of a rank with a role is named, and sent under its names."""
    folder = left(tmp_path / "outgoing", prof_dir="captures", role="rollout")
    (one,) = left_behind(tmp_path)
    assert one.folder == folder
    words = shlex.split(one.command)
    assert run([sys.executable, *words[1:]]).returncode == 0
    sent = tmp_path / "captures" / f"{FOLDER}_rollout"
    assert (sent / "info" / "rollout_rank_0.info.json").is_file()
    assert left_behind(tmp_path) == []


def test_a_held_capture_is_not_left_behind(tmp_path: Path) -> None:
    """Held means by a live job, or by a process that sends for a dead one."""
    folder = left(tmp_path / "outgoing", prof_dir="captures")
    for held in (folder.parent, folder / "info"):
        with folder_lock(held):
            assert left_behind(tmp_path) == []
    assert left_behind(tmp_path)


def test_a_recent_capture_is_not_left_behind(tmp_path: Path) -> None:
    """A capture that is being saved, or was saved just now, may yet be sent."""
    folder = left(tmp_path / "outgoing", prof_dir="captures")
    saving = folder / "info" / ".host_42.rank0.x.saving"
    saving.mkdir()
    assert left_behind(tmp_path) == []
    saving.rmdir()
    os.utime(folder / "info" / "rank_0.info.json")
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("trace", ["gone.json.gz", "../../../secret", ".."])
def test_a_missing_trace_is_not_sent(tmp_path: Path, trace: str) -> None:
    """A trace may have been sent and removed; a manifest cannot name files outside its folder."""
    left(tmp_path / "outgoing", trace, prof_dir="captures")
    (tmp_path / "secret").touch()
    assert left_behind(tmp_path) == []


def test_a_capture_at_its_destination_is_not_left_behind(tmp_path: Path) -> None:
    """Only its directory's name resembles those of unsent captures."""
    left(tmp_path, prof_dir="host_42.rank0")
    assert left_behind(tmp_path) == []


def test_a_link_in_the_place_of_a_capture_is_not_named(tmp_path: Path) -> None:
    """The command must not send files from elsewhere."""
    folder, elsewhere = left(tmp_path / "outgoing", prof_dir="captures"), tmp_path / "elsewhere"
    assert left_behind(tmp_path)
    for place in (folder, folder.parent):
        place.rename(elsewhere)
        place.symlink_to(elsewhere)
        assert left_behind(tmp_path) == []
        place.unlink()
        elsewhere.rename(place)


def test_nothing_is_taken_from_another_job_through_a_link(tmp_path: Path) -> None:
    """Private files of another user must not become readable."""
    root = tmp_path / "root"
    root.mkdir()
    left(tmp_path / "private" / "outgoing", prof_dir="captures")
    (root / "x").symlink_to(tmp_path / "private" / "outgoing")
    (one,) = left_behind(root)
    assert not one.target


def test_a_capture_in_a_scratch_directory_names_its_job(tmp_path: Path) -> None:
    """Several jobs may use the directory; the manifest has prof_dir's base directory."""
    root = tmp_path / "root"
    folder = left(tmp_path / "scratch", directory="/job/prof_config", prof_dir="./")
    (one,) = left_behind(root, [tmp_path / "scratch"])
    assert one.command == f"python -I -m dynprof.captures.sender {folder} /job/prof_config/{FOLDER}"


def test_an_older_capture_in_a_scratch_directory_names_no_job(tmp_path: Path) -> None:
    """Without the base directory of a relative prof_dir, the user has to know the destination."""
    root = tmp_path / "root"
    left(tmp_path / "scratch", prof_dir="captures")
    (one,) = left_behind(root, [tmp_path / "scratch"])
    assert one.command.endswith(" URL-OR-DIRECTORY")


def test_a_noted_scratch_directory_is_searched(tmp_path: Path) -> None:
    """No setting names it; a note that other users could have written is ignored."""
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    note_scratch(root, tmp_path / "scratch")
    folder = left(tmp_path / "scratch", directory=str(root), prof_dir="./")
    (one,) = left_behind(root)
    assert one.command.endswith(f" {folder} {root}/{FOLDER}")
    root.chmod(0o770)
    assert left_behind(root) == []


def test_names_with_line_breaks_are_skipped(tmp_path: Path) -> None:
    """A user who may write there cannot forge lines of `dynprof status`."""
    left(tmp_path / "outgoing\ntype rm", prof_dir="captures")
    assert left_behind(tmp_path) == []
    left(tmp_path / "outgoing", prof_dir="s3://a/b\ntype rm")
    (one,) = left_behind(tmp_path)
    assert not one.target


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    """Other users may write where captures wait, and reading 16 MB takes seconds."""
    left(tmp_path / "outgoing", prof_dir="captures", metadata={"padding": "x" * 90_000})
    assert left_behind(tmp_path)
    left(tmp_path / "o", prof_dir="captures", metadata={"padding": "x" * 100_000})
    assert [one.folder.parts[-3] for one in left_behind(tmp_path)] == ["outgoing"]


def test_irregular_files_in_place_of_a_manifest_are_skipped(tmp_path: Path) -> None:
    """This covers a FIFO, a link to an endless device, and files that are not manifests."""
    path = left(tmp_path / "outgoing", prof_dir="captures") / "info" / "rank_0.info.json"
    path.unlink()
    os.mkfifo(path)
    os.utime(path, (1e9, 1e9))
    assert left_behind(tmp_path) == []
    path.unlink()
    path.write_text(json.dumps({}))
    os.utime(path, (1e9, 1e9))
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    "place", ["s3://key:secret@runs", "s3://runs/../other", "file:///etc", "s3://runs?x", "a\nb"]
)
def test_an_invalid_destination_is_not_in_the_command(tmp_path: Path, place: str) -> None:
    """The manifest may be another user's: its content must not be pasted unchecked."""
    left(tmp_path / "outgoing", prof_dir=place)
    (one,) = left_behind(tmp_path)
    assert one.command.endswith(" URL-OR-DIRECTORY")


def test_a_folder_name_that_changes_a_url_is_not_in_the_command(tmp_path: Path) -> None:
    """Neither parameters nor another bucket get into the command."""
    folder = left(tmp_path / "outgoing", prof_dir="s3://runs")
    folder.rename(folder.with_name("step_1?acl=public"))
    (one,) = left_behind(tmp_path)
    assert one.command.endswith(" URL-OR-DIRECTORY")


def test_words_of_a_shell_are_quoted_in_the_command(tmp_path: Path) -> None:
    """Whatever a manifest has, the command is one with two arguments."""
    folder = left(tmp_path / "out; id", prof_dir="$(id) `id` 'a")
    (one,) = left_behind(tmp_path, [tmp_path / "out; id"])
    *_, sent, target = shlex.split(one.command)
    assert (sent, target) == (str(folder), f"{tmp_path}/$(id) `id` 'a/{FOLDER}")
    counted = run(["/bin/sh", "-c", f"set -- {one.command}; echo $#"])
    assert counted.stdout == "6\n"
