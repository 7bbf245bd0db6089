"""Whose a path is, and what is left of root once its owner has been become."""

from __future__ import annotations

import errno
import json
import os
import pwd
from pathlib import Path
from typing import NoReturn

import pytest

from dynprof.errors import OwnerError
from dynprof.process.acting_user import act_as_owner, owner_on_the_way
from tests.users import ALICE, MALLORY, ROOT, as_root, others_run_python


@as_root
def test_first_user_but_root_on_the_way_decides(shared_tmp: Path) -> None:
    """Neither the folder itself nor what lies below counts, once a folder above is a user's."""
    home = shared_tmp / "alice"
    (home / "of_mallory" / "of_root").mkdir(parents=True)
    ALICE.own(home)
    MALLORY.own(home / "of_mallory")
    path = home / "of_mallory" / "of_root" / "not_there"
    assert owner_on_the_way(path) == (ALICE.uid, home, path)
    assert owner_on_the_way(shared_tmp / "not_there")[0] == 0


@as_root
def test_link_counts_with_its_own_owner(shared_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's link to what is root's is the user's; root's link to a user's folder is followed."""
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
    monkeypatch.setattr(Path, "readlink", pytest.fail)  # it may be something else by then
    assert owner_on_the_way(theirs)[0] == ALICE.uid


@as_root
def test_loop_of_links_is_nobody_elses(shared_tmp: Path) -> None:
    """What opens it says what is wrong."""
    (shared_tmp / "loop").symlink_to("loop")
    assert owner_on_the_way(shared_tmp / "loop")[0] == 0


@as_root
def test_what_others_could_make_or_replace_is_refused(shared_tmp: Path) -> None:
    """They could do it between this look and the opening; the sticky bit protects what exists."""
    there = shared_tmp / "there"
    there.touch()
    shared_tmp.chmod(0o1777)
    assert owner_on_the_way(there)[0] == 0
    with pytest.raises(OwnerError, match=r"there is no .*/new, and other users may make it"):
        owner_on_the_way(shared_tmp / "new" / "run")
    for mode, group in (0o777, 0), (0o775, ALICE.uid):
        shared_tmp.chmod(mode)
        os.chown(shared_tmp, 0, group)
        with pytest.raises(OwnerError, match=r"other users may replace .*/there.* chmod \+t "):
            owner_on_the_way(there)
    os.chown(shared_tmp, 0, 0)  # the group is root's
    assert owner_on_the_way(there)[0] == 0


def test_ordinary_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns the path; nothing is said."""
    monkeypatch.setattr(os, "geteuid", lambda: ALICE.uid)
    assert act_as_owner(tmp_path, pytest.fail) == tmp_path


LEFT = """
import json, os, sys
from pathlib import Path
from dynprof.process.acting_user import act_as_owner
os.environ.update(TMPDIR=sys.argv[2], XDG_CACHE_HOME="/root/.cache")
act_as_owner(Path(sys.argv[1]), print)
try:
    os.setresuid(0, 0, 0)
    back = True
except PermissionError:
    back = False
print(json.dumps([os.getresuid(), os.getresgid(), os.getgroups(), back]))
print(os.stat("/proc/self/mem").st_uid)
print(sorted(name for name in os.environ if name in {"HOME", "TMPDIR"} or "XDG" in name))
"""


@as_root
@others_run_python
def test_nothing_of_root_is_left(shared_tmp: Path) -> None:
    """Neither ids nor groups, the folder's group included; nor root's folders in the environment.

    Nothing in the process can go back.
    """
    home, private = shared_tmp / "alice", shared_tmp / "tmp"
    home.mkdir()
    private.mkdir(mode=0o700)
    os.chown(home, ALICE.uid, 0)
    done = ROOT.python(LEFT, home, private)
    assert done.stdout.splitlines() == [
        f"acting as uid {ALICE.uid}, who owns {home}",
        f"[{[ALICE.uid] * 3}, {[ALICE.uid] * 3}, [], false]",
        "0",  # so the user may neither trace this process nor read its memory
        "['HOME']",
    ]


@as_root
@others_run_python
def test_account_gives_its_name_and_groups(shared_tmp: Path) -> None:
    """Those that the system has for it, and its home."""
    account = next(one for one in pwd.getpwall() if one.pw_uid)
    os.chown(shared_tmp, account.pw_uid, 0)
    uid, gid = account.pw_uid, account.pw_gid
    done = ROOT.python(LEFT, shared_tmp, "/")
    groups = sorted(os.getgrouplist(account.pw_name, gid))
    first, ids, *_ = done.stdout.splitlines()
    assert first == f"acting as {account.pw_name} (uid {uid}), who owns {shared_tmp}"
    assert json.loads(ids) == [[uid] * 3, [gid] * 3, groups, False]


@as_root
def test_system_that_forbids_the_change_is_named(
    shared_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container without the capability: nothing goes on as root."""
    ALICE.own(shared_tmp)

    def forbidden(_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setgroups", forbidden)
    with pytest.raises(OwnerError, match="cannot act as that user: Operation not permitted"):
        act_as_owner(shared_tmp, pytest.fail)


PRIVATE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import private
from dynprof.process.acting_user import act_as_owner
act_as_owner(Path(sys.argv[1]), print)
"""


@as_root
@others_run_python
def test_code_that_the_owner_cannot_read_is_refused(shared_tmp: Path) -> None:
    """As where dynprof lies in root's home: the message names the folder, and what to do."""
    home, packages = shared_tmp / "alice", shared_tmp / "packages"
    home.mkdir()
    packages.mkdir(mode=0o700)
    (packages / "private.py").touch()
    ALICE.own(home)
    done = ROOT.python(PRIVATE, home, packages)
    last = done.stderr.splitlines()[-1]
    assert f"uid {ALICE.uid} owns {home}, and dynprof acts as that user there" in last
    assert f"that user cannot read {packages}, where this dynprof or its Python lies" in last
    assert last.endswith(f"run it as that user: sudo -u '#{ALICE.uid}' dynprof ...")
    assert done.stdout == ""


WORKER = """
import os, sys
from pathlib import Path
from dynprof.analysis.runs.executors import processes
from dynprof.process.acting_user import act_as_owner
act_as_owner(Path(sys.argv[1]), lambda _: None)
with processes(2) as workers:
    asked = [(os.getuid,), (os.getsid, 0), (os.readlink, "/proc/self/fd/2")]
    uid, session, errors = (workers.submit(*one).result() for one in asked)
print(uid, session == os.getsid(0), errors)
"""


@as_root
@others_run_python
def test_worker_of_another_user_has_no_terminal_of_roots(shared_tmp: Path) -> None:
    """That user may trace it, and could type into the terminal from there."""
    home = shared_tmp / "alice"
    home.mkdir()
    assert ROOT.python(WORKER, home).stdout.startswith("0 True ")
    ALICE.own(home)
    assert ROOT.python(WORKER, home).stdout == f"{ALICE.uid} False /dev/null\n"
