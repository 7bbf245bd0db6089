"""Whether another user can change a file, by its mode or that of a parent folder."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime.permissions import (
    who_else_may_change,
    who_else_may_replace,
    why_not_watched,
)
from tests import processes
from tests.users import ALICE, MALLORY, as_root

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file that no other user may change."""
    folder = tmp_path / "job" / "prof_config"
    folder.mkdir(parents=True)
    found = folder / "profiler_config.json"
    found.touch()
    for place in (found, folder, folder.parent):
        place.chmod(0o700)
    return found


def test_a_file_of_the_user_is_trusted(path: Path) -> None:
    """This holds although all users may write in a sticky parent folder, such as /tmp."""
    assert who_else_may_change(path) == ""
    path.parent.parent.chmod(0o1777)
    assert who_else_may_change(path) == ""


@pytest.mark.parametrize("mode", [0o720, 0o702])
@pytest.mark.parametrize("above", [0, 1, 2])
def test_a_path_that_others_may_write_is_named(path: Path, mode: int, above: int) -> None:
    """Others may write the file, its folder or a parent, and so replace the file."""
    place = (path, *path.parents)[above]
    place.chmod(mode)
    assert who_else_may_change(path) == f"users other than the job's user may write {place}"


def test_a_sticky_folder_does_not_protect_a_file_directly_in_it(path: Path) -> None:
    """If the config is directly in it, others could take its name while it is absent."""
    path.parent.chmod(0o1770)
    assert str(path.parent) in who_else_may_change(path)


def test_links_to_a_path_that_others_may_write_are_named(path: Path) -> None:
    """With follow_symlinks, a user who may replace the link's target may change the config."""
    apart = path.parent.parent / "apart"
    apart.mkdir()
    path.rename(apart / "real.json")
    path.symlink_to(apart / "real.json")
    assert who_else_may_change(path) == ""
    apart.chmod(0o1777)
    assert who_else_may_change(path) == f"users other than the job's user may write {apart}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_another_user(path: Path) -> None:
    """Another user's file is not trusted, because its owner may change it."""
    os.chown(path, 12345, 12345)
    assert who_else_may_change(path) == f"{path} is another user's"


def test_a_file_that_is_gone(path: Path) -> None:
    """A file that cannot be checked is not trusted."""
    path.unlink()
    assert "cannot check who may write" in who_else_may_change(path)


@pytest.fixture
def folder(shared_tmp: Path) -> Path:
    """Return a folder of Alice in one of hers, below a sticky folder such as ``/tmp``."""
    found = shared_tmp / "job" / "prof_config"
    found.mkdir(parents=True)
    for place in (found, found.parent):
        place.chmod(0o755)
    ALICE.own(found, found.parent)
    shared_tmp.chmod(0o1777)
    return found


def replaced_by(folder: Path) -> str:
    """Return Alice's error for a folder that she wants to watch."""
    with ALICE.acting():
        return who_else_may_replace(folder)


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o770, 0o1777, 0o3777])
def test_a_folder_of_the_user_or_root_is_trusted(folder: Path, mode: int) -> None:
    """Others may put files into it: each file that is read has its own check."""
    folder.chmod(mode)
    assert replaced_by(folder) == ""
    assert replaced_by(folder / "not" / "yet") == ""
    folder.parent.chmod(0o775)  # a group that the owner chose
    os.chown(folder, 0, 0)
    assert replaced_by(folder) == ""


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o3777])
@pytest.mark.parametrize("above", [0, 1])
def test_a_folder_that_another_user_made_beforehand(folder: Path, mode: int, above: int) -> None:
    """The sticky bit of a folder does not restrict the folder's owner."""
    place = (folder, folder.parent)[above]
    MALLORY.own(place)
    place.chmod(mode | 0o055)
    assert replaced_by(folder) == f"{place} belongs to uid 61002, not to uid 61001"


@as_root
def test_a_folder_that_every_user_may_rename(folder: Path) -> None:
    """The parent's mode allows that, though the folder itself is private."""
    folder.parent.chmod(0o777)
    why = f"every user may rename files in {folder.parent}, which lacks chmod +t"
    assert replaced_by(folder) == why
    folder.parent.chmod(0o1777)
    assert replaced_by(folder) == ""


@as_root
def test_a_link_of_another_user_on_the_way(folder: Path, shared_tmp: Path) -> None:
    """Such a link leads to a folder of the job's user that was not meant."""
    link = shared_tmp / "prof_config"
    link.symlink_to(folder)
    MALLORY.own(link)
    assert replaced_by(link) == f"{link} belongs to uid 61002, not to uid 61001"
    ALICE.own(link)
    assert replaced_by(link) == ""


@as_root
def test_a_container_without_other_users(folder: Path, tmp_path: Path) -> None:
    """Parent folders of a volume show no known owner there; the volume must be the user's."""
    volume = folder / "volume"
    volume.mkdir()
    told = """
import sys
from pathlib import Path
from dynprof.runtime.permissions import who_else_may_replace
print(repr([who_else_may_replace(Path(place)) for place in sys.argv[1:]]))
"""
    inside = ("unshare", "--user", "--map-root-user")
    done = processes.run([*inside, sys.executable, "-c", told, volume, folder], cwd=tmp_path)
    if done.returncode:
        pytest.skip(f"no user namespace can be made here: {done.stderr}")
    nobodys = f"{folder} belongs to nobody (uid 65534), not to root (uid 0)"
    assert done.stdout.strip() == repr(["", nobodys])


@as_root
def test_owner_of_the_script_is_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of a parent folder is trusted as well, such as that of a mounted workspace."""
    MALLORY.own(folder.parent)
    script = folder / "train.py"
    script.touch()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert replaced_by(folder) == ""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", os.__file__, raising=False)
    assert replaced_by(folder) == f"{folder.parent} belongs to uid 61002, not to uid 61001"


@as_root
def test_users_that_the_environment_names_are_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``DYNPROF_TRUST_UIDS`` names them, and the refusal names the variable."""
    MALLORY.own(folder.parent)
    with ALICE.acting():
        assert why_not_watched(folder).endswith(": DYNPROF_TRUST_UIDS=61002")
    monkeypatch.setenv("DYNPROF_TRUST_UIDS", "5, 61002")
    assert replaced_by(folder) == ""
    monkeypatch.setenv("DYNPROF_TRUST_UIDS", "5,mallory")
    with pytest.raises(ValueError, match="has 'mallory': write user ids, such as 1000"):
        replaced_by(folder)
    monkeypatch.setenv("DYNPROF_TRUST_UIDS", "*")
    folder.parent.chmod(0o777)
    assert replaced_by(folder) == ""
