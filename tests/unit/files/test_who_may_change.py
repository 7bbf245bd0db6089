"""Whether anybody but this user can change a file, by its mode or that of a folder above it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dynprof.files.who_may_change import who_else_may_change

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file that nobody else may change."""
    folder = tmp_path / "job" / "prof_config"
    folder.mkdir(parents=True)
    found = folder / "profiler_config.json"
    found.touch()
    for place in (found, folder, folder.parent):
        place.chmod(0o700)
    return found


def test_a_file_of_ones_own(path: Path) -> None:
    """Though everybody may write in a sticky folder above, as /tmp is."""
    assert who_else_may_change(path) == ""
    path.parent.parent.chmod(0o1777)
    assert who_else_may_change(path) == ""


@pytest.mark.parametrize("mode", [0o720, 0o702])
@pytest.mark.parametrize("above", [0, 1, 2])
def test_others_that_may_write(path: Path, mode: int, above: int) -> None:
    """The file, its folder or one above, in which they could put another one in its place."""
    place = (path, *path.parents)[above]
    place.chmod(mode)
    assert who_else_may_change(path) == f"others than the job's user may write {place}"


def test_a_sticky_folder_keeps_no_file_of_its_own_apart(path: Path) -> None:
    """Where the config lies in it, others could take the name while it is gone."""
    path.parent.chmod(0o1770)
    assert str(path.parent) in who_else_may_change(path)


def test_links_that_lead_to_what_others_may_write(path: Path) -> None:
    """As with follow_symlinks: whoever may replace what a link leads to may change the config."""
    apart = path.parent.parent / "apart"
    apart.mkdir()
    path.rename(apart / "real.json")
    path.symlink_to(apart / "real.json")
    assert who_else_may_change(path) == ""
    apart.chmod(0o1777)
    assert who_else_may_change(path) == f"others than the job's user may write {apart}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_another_user(path: Path) -> None:
    """He may change it as he likes."""
    os.chown(path, 12345, 12345)
    assert who_else_may_change(path) == f"{path} is another user's"


def test_a_file_that_is_gone(path: Path) -> None:
    """What cannot be looked at is not trusted."""
    path.unlink()
    assert "it is not known who may write" in who_else_may_change(path)
