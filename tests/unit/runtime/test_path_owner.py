"""The owner of a path, for root's commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dynprof.errors import OwnerError
from dynprof.runtime.acting_user import owner_on_the_way
from tests.users import ALICE, CHECKOUT, MALLORY, PACKAGES, ROOT, as_root


@as_root
def test_first_owner_other_than_root_decides(shared_tmp: Path) -> None:
    """Once a parent folder is a user's, neither the folder nor its content counts."""
    home = shared_tmp / "alice"
    (home / "of_mallory" / "of_root").mkdir(parents=True)
    ALICE.own(home)
    MALLORY.own(home / "of_mallory")
    path = home / "of_mallory" / "of_root" / "not_there"
    assert owner_on_the_way(path) == (ALICE.uid, home, path)
    assert owner_on_the_way(shared_tmp / "not_there")[0] == 0


@as_root
def test_link_counts_with_its_own_owner(shared_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's link to root's file is the user's; root's link to a user's folder is followed."""
    home, secret = shared_tmp / "alice", shared_tmp / "secret"
    (home / "run").mkdir(parents=True)
    secret.mkdir()
    theirs, absolute, relative = (shared_tmp / name for name in ("theirs", "absolute", "relative"))
    theirs.symlink_to(secret)
    absolute.symlink_to(home)
    relative.symlink_to("secret/../alice")
    ALICE.own(home, theirs)
    assert owner_on_the_way(theirs / "x") == (ALICE.uid, theirs, theirs / "x")
    for link in (absolute, relative):
        assert owner_on_the_way(link / "run") == (ALICE.uid, home, home / "run")
    assert owner_on_the_way(relative / ".." / "secret")[1] == home
    monkeypatch.setattr(Path, "readlink", pytest.fail)  # it may have changed by then
    assert owner_on_the_way(theirs)[0] == ALICE.uid


@as_root
def test_a_loop_of_links_has_no_other_owner(shared_tmp: Path) -> None:
    """Opening it gives the error."""
    (shared_tmp / "loop").symlink_to("loop")
    assert owner_on_the_way(shared_tmp / "loop")[0] == 0


@as_root
def test_a_path_that_others_could_make_or_replace_is_refused(shared_tmp: Path) -> None:
    """Others could do so between check and opening; the sticky bit protects existing files."""
    there = shared_tmp / "there"
    there.touch()
    shared_tmp.chmod(0o1777)
    assert owner_on_the_way(there)[0] == 0
    with pytest.raises(OwnerError, match=r"there is no .*/new\. Check the path; .* mkdir it first"):
        owner_on_the_way(shared_tmp / "new" / "run")
    for mode, group in (0o777, 0), (0o775, ALICE.uid):
        shared_tmp.chmod(mode)
        os.chown(shared_tmp, 0, group)
        with pytest.raises(OwnerError, match=r"other users may replace .*/there.* chmod \+t "):
            owner_on_the_way(there)
    os.chown(shared_tmp, 0, 0)  # the group is root's
    assert owner_on_the_way(there)[0] == 0


@as_root
def test_owner_outside_of_a_container_counts_as_root(shared_tmp: Path) -> None:
    """The container's root is a user of the host, and cannot become users without a mapping."""
    home = shared_tmp / "alice"
    home.mkdir()
    ALICE.own(home)
    told = """
import sys
from pathlib import Path
from dynprof.runtime.acting_user import owner_on_the_way
print(owner_on_the_way(Path(sys.argv[1]))[0])
"""
    path = {"PYTHONPATH": f"{CHECKOUT}:{PACKAGES}"}
    inside = ("unshare", "--user", "--map-root-user")
    if (tried := ROOT.run(*inside, "true")).returncode:
        pytest.skip(f"no user namespace can be made here: {tried.stderr}")
    done = ROOT.run(*inside, sys.executable, "-c", told, home, env=path)
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert owner_on_the_way(home)[0] == ALICE.uid
