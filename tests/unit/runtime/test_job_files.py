"""The files below a folder in which a job is active."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.runs.one_trace import newest_in, traces_in
from dynprof.analysis.runs.recorded_window import newest_window
from dynprof.errors import CaptureError
from dynprof.runtime.job_files import (
    MAX_DEPTH,
    files_below,
    folders_below,
    skipped_below,
    written_s,
)
from tests.processes import run
from tests.users import ALICE, MALLORY, as_root

if TYPE_CHECKING:
    from pathlib import Path


def made(path: Path, text: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_folder_that_vanishes_during_the_search_is_ignored(tmp_path: Path) -> None:
    """A capture's temporary folder, for example, may vanish during a report."""
    names = {made(tmp_path / name / "trace.json") for name in "abc"}
    found = files_below(tmp_path)
    first = next(found)
    gone = max(names - {first})
    shutil.rmtree(gone.parent)
    assert {first, *found} == names - {gone}


@pytest.mark.parametrize("ending", [".saving", ".recording"])
def test_unfinished_captures_are_ignored(tmp_path: Path, ending: str) -> None:
    """A trace that is being written is not a trace, and not the newest, to a command."""
    half = made(tmp_path / f"step_1/info/.host_1.rank0.abc{ending}/a.trace.json", "{")
    with pytest.raises(CaptureError, match="holds no trace"):
        newest_in(tmp_path)
    whole = made(tmp_path / "step_0/a.trace.json")
    assert written_s(half) <= written_s(whole)
    made(half, "{ newer")
    assert newest_in(tmp_path) == whole
    assert newest_window(tmp_path) == (tmp_path, [])


def test_a_folder_with_only_the_suffix_is_searched(tmp_path: Path) -> None:
    """Only hidden folders with this suffix are dynprof's."""
    whole = [made(tmp_path / name / "a.trace.json") for name in ("x.saving", ".hidden")]
    assert sorted(files_below(tmp_path)) == sorted(whole)


def test_a_file_that_is_gone_was_written_before_all_others(tmp_path: Path) -> None:
    """The newest of some files can then be found while others are removed."""
    assert written_s(tmp_path / "gone") == 0 < written_s(made(tmp_path / "here"))


def test_file_systems_of_fsspec_behave_alike() -> None:
    """Paths of such a file system are not paths of this machine."""
    upath = pytest.importorskip("upath", reason="universal_pathlib is not installed")
    folder = upath.UPath("memory://bucket/below")
    for name in ("a", ".x.saving"):
        (folder / name).mkdir(parents=True)
        (folder / name / "trace.json").write_text("{}")
    assert list(files_below(folder)) == [folder / "a" / "trace.json"]
    assert {path.name for path in folders_below(folder)} == {"below", "a", ".x.saving"}


def test_links_in_a_folder_are_skipped_and_named(tmp_path: Path) -> None:
    """Links to files and folders are skipped, whatever their target; the user may name one."""
    there = made(tmp_path / "there/a.trace.json")
    folder = tmp_path / "folder"
    (folder / "info").mkdir(parents=True)
    links = [folder / name for name in ("b.trace.json", "info/rank_0.info.json", "step_1-2_x")]
    for link in links:
        link.symlink_to(there if link.suffix else there.parent)
    (folder / "notes.txt").symlink_to(there)  # not a file that commands read
    assert list(files_below(folder)) == []
    assert sorted(skipped_below(folder)) == sorted(f"{link} is a symbolic link" for link in links)
    assert traces_in(links[0]) == traces_in(links[2]) == [there]


def test_folders_that_are_too_deep_are_named_and_not_entered(tmp_path: Path) -> None:
    """Python 3.11 raises RecursionError in folders that are nested a thousand deep."""
    deepest = made(tmp_path.joinpath(*"a" * MAX_DEPTH, "a.trace.json"))
    top = os.open(deepest.parent, os.O_RDONLY)
    for _ in range(1500):  # the whole path exceeds the system's limit
        os.mkdir("b", dir_fd=top)
        above, top = top, os.open("b", os.O_RDONLY, dir_fd=top)
        os.close(above)
    os.close(top)
    assert list(files_below(tmp_path)) == [deepest]
    assert len(list(folders_below(tmp_path))) == MAX_DEPTH + 1
    too_deep = f"{deepest.parent / 'b'} is more than {MAX_DEPTH} folders deep"
    assert skipped_below(tmp_path) == [too_deep]
    assert run(["rm", "-r", tmp_path / "a"]).returncode == 0  # shutil.rmtree fails as well


@as_root
def test_files_of_unrelated_users_are_skipped_and_named(tmp_path: Path) -> None:
    """Unrelated users are neither root, nor the caller, nor the folder's owner."""
    mine, theirs = (made(tmp_path / "job" / name) for name in ("a.trace.json", "b.trace.json"))
    inside = made(tmp_path / "job/step_1/a.trace.json")
    roots = made(tmp_path / "job/root.trace.json")
    ALICE.own(mine.parent, mine)
    MALLORY.own(theirs, inside.parent, inside)
    for name in ("analysis", "ASCEND_PROFILER_OUTPUT"):  # reports of a group member
        MALLORY.own(made(tmp_path / "job" / name / "report.html").parent)
    assert sorted(files_below(tmp_path)) == sorted([mine, roots])
    uid = MALLORY.uid
    named = {f"{path} belongs to uid {uid}" for path in (theirs, inside.parent)}
    assert set(skipped_below(tmp_path)) == named
    MALLORY.own(tmp_path / "job")
    assert theirs in files_below(tmp_path)
