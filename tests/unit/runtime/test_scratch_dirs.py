"""Notes on the scratch directories where captures were written first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime.stale_folders import MAX_NOTES, note_scratch, staging_dirs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory that only this user may change."""
    path = tmp_path / "root"
    path.mkdir(mode=0o700)
    return path


def used(place: Path) -> Path:
    """Create a process's folder in a scratch directory; return it."""
    folder = place / "host_42.rank0"
    folder.mkdir(parents=True)
    return folder


def test_noted_scratch_directories_are_found(root: Path, tmp_path: Path) -> None:
    """Each is found once, however often it was noted; folders without a process's name are not."""
    folder = used(tmp_path / "scratch")
    (tmp_path / "scratch" / "host_43.rank1").touch()
    (tmp_path / "scratch" / "datasets").mkdir()
    for _ in range(2):
        note_scratch(root, tmp_path / "scratch")
    note_scratch(root, tmp_path / "of another machine")
    assert staging_dirs(root) == [folder]


def test_a_folder_of_another_user_or_a_link_is_ignored(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All users of a machine may write in a scratch directory."""
    folder = used(tmp_path / "scratch")
    (tmp_path / "scratch" / "host_43.rank1").symlink_to(folder)
    note_scratch(root, tmp_path / "scratch")
    assert staging_dirs(root) == [folder]
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr("dynprof.runtime.stale_folders.who_else_may_change", lambda _: "")
    assert staging_dirs(root) == []


@pytest.mark.parametrize("note", ["", "[", "\ud800", '"relative"', "7" * (1 << 17)])
def test_an_invalid_note_is_ignored(root: Path, tmp_path: Path, note: str) -> None:
    """A note may be truncated, or not be one."""
    note_scratch(root, tmp_path / "scratch")
    (path,) = root.glob(".scratch_dir_*")
    path.write_bytes(note.encode(errors="surrogatepass"))
    assert staging_dirs(root) == []


def test_the_newest_notes_are_kept(root: Path, tmp_path: Path) -> None:
    """Jobs with a scratch directory per job do not fill the directory of notes."""
    for number in range(MAX_NOTES + 4):
        used(tmp_path / str(number))
        note_scratch(root, tmp_path / str(number))
        for note in root.glob(".scratch_dir_*"):
            os.utime(note, (1e9, note.stat().st_mtime - 10))
    assert sorted(int(folder.parent.name) for folder in staging_dirs(root)) == list(
        range(4, MAX_NOTES + 4)
    )
    assert len(list(root.glob(".scratch_dir_*"))) == MAX_NOTES
