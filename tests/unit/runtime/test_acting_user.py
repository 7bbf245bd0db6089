"""Root's commands that run as a path's owner: what they keep of root, and what they show."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import pwd
import select
import signal
import struct
import termios
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.runtime.acting_user import act_as_owner
from tests.pace import patience_s
from tests.processes import MARK, start
from tests.users import ALICE, CHECKOUT, PACKAGES, PYTHON, ROOT, as_root, others_run_python

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "PYTHONPATH": f"{CHECKOUT}:{PACKAGES}",
    "PYTHONDONTWRITEBYTECODE": "1",
}
OF_ROOT = {
    "HOME": "/root",
    "ROOTS_API_KEY": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "DYNPROF_TOKEN": "secret",
    "XDG_CACHE_HOME": "/root/.cache",
    "BROWSER": "/bin/true",
    "DISPLAY": ":0",
    "TERM": "xterm",
}
ACT = """
import sys
from pathlib import Path
from dynprof.errors import OwnerError
from dynprof.journal.journal import printable
from dynprof.runtime.acting_user import act_as_owner
try:
    act_as_owner(Path(sys.argv[1]), printable, module="tests.acted_command")
except OwnerError as error:
    sys.exit(str(error))
print("all of it is root's")
"""


@pytest.fixture
def home(shared_tmp: Path) -> Path:
    """Return a user's folder."""
    home = shared_tmp / "alice"
    home.mkdir()
    ALICE.own(home)
    return home


def command(*arguments: object) -> list[str]:
    """Return the command line of a command of root."""
    return [str(PYTHON), "-c", ACT, *map(str, arguments)]


def act(*arguments: object, **named: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of root to its end."""
    return ROOT.run(*command(*arguments), **{"env": ENVIRONMENT, **named})


class Terminal:
    """A terminal in which root types a command."""

    def __init__(self, *arguments: object) -> None:
        self._end, inside = pty.openpty()
        self._root = start(
            command(*arguments),
            env={**ENVIRONMENT, **OF_ROOT},
            **dict.fromkeys(("stdin", "stdout", "stderr"), inside),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self.shown = b""

    def read(self, until: bytes = b"") -> None:
        """Wait until a text is shown, or for the end."""
        with contextlib.suppress(OSError):  # the last process that had it has ended
            while not until or until not in self.shown:
                assert select.select([self._end], [], [], patience_s())[0], self.shown
                self.shown += os.read(self._end, 4096)

    def type(self, keys: bytes) -> None:
        """Type a text."""
        os.write(self._end, keys)

    def code(self) -> int:
        """Return the exit code."""
        self.read()
        os.close(self._end)
        return self._root.wait()


def test_ordinary_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path's owner does not matter, and nothing is printed."""
    monkeypatch.setattr(os, "geteuid", lambda: ALICE.uid)
    assert act_as_owner(tmp_path, pytest.fail) == tmp_path


@as_root
@others_run_python
def test_path_of_root_changes_nothing(shared_tmp: Path) -> None:
    """The command continues in the same process."""
    assert act(shared_tmp, "facts").stdout == "all of it is root's\n"


@as_root
@others_run_python
def test_nothing_of_root_is_left(home: Path) -> None:
    """Neither id, group, terminal, standard input, browser nor secret stays."""
    os.chown(home, ALICE.uid, 0)
    terminal = Terminal(home, "facts")
    assert terminal.code() == 0
    first, told = terminal.shown.decode().splitlines()
    assert first == f"acting as uid {ALICE.uid}, who owns {home}"
    facts = json.loads(told)
    assert facts["ids"] == [[ALICE.uid] * 3, [ALICE.uid] * 3, [ALICE.uid]]
    assert (facts["back"], facts["terminal"], facts["browser"]) == (False, -1, "")
    assert (facts["input"], "/dev/pts" in told) == ("/dev/null", False)
    environment = facts["environment"]
    assert environment.pop("COLUMNS")
    environment.pop(MARK)
    environment.pop("LC_CTYPE", None)  # set by Python
    assert environment == {
        "PATH": ENVIRONMENT["PATH"],
        "DYNPROF_DISABLE": "1",
        "HOME": "/",
        "USER": str(ALICE.uid),
        "LOGNAME": str(ALICE.uid),
    }


@as_root
@others_run_python
def test_account_gives_its_name_and_groups(shared_tmp: Path) -> None:
    """The groups and the home are those of the system's account."""
    account = next(one for one in pwd.getpwall() if one.pw_uid)
    os.chown(shared_tmp, account.pw_uid, 0)
    uid, gid = account.pw_uid, account.pw_gid
    done = act(shared_tmp, "facts")
    facts = json.loads(done.stdout)
    groups = sorted(os.getgrouplist(account.pw_name, gid))
    assert done.stderr == f"acting as {account.pw_name} (uid {uid}), who owns {shared_tmp}\n"
    assert facts["ids"] == [[uid] * 3, [gid] * 3, groups]
    assert facts["environment"]["HOME"] == account.pw_dir


@as_root
@others_run_python
def test_working_directory_is_entered_by_its_name(home: Path, shared_tmp: Path) -> None:
    """A folder that the user may not enter is then not inherited from root."""
    private = shared_tmp / "private"
    private.mkdir(mode=0o700)
    there = f"import os, sys\nos.chdir(sys.argv.pop(1))\n{ACT}"
    for folder, entered in ((home, home), (private, "/")):
        facts = json.loads(ROOT.python(there, folder, home, "facts").stdout)
        assert facts["folder"] == str(entered)
    ends = ((private, "2"), (private, "0"), (home, "2"))
    said = [ROOT.python(there, folder, home, "end", code).stderr for folder, code in ends]
    assert f"relative paths count from /, since uid {ALICE.uid} may not enter {private}" in said[0]
    assert "relative" not in said[1] + said[2]


@as_root
@others_run_python
def test_output_is_shown_as_text(home: Path, shared_tmp: Path) -> None:
    """The terminal executes none of it, and root's process loads nothing, not even a pickle."""
    made = shared_tmp / "made"
    done = act(home, "speak", made)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["a\tb \\x1b]0;title\\x07", "\N{REPLACEMENT CHARACTER}"]
    assert done.stderr.splitlines()[-1] == "error \\x1b]0;title\\x07"
    assert "PosixPath" in lines[-1]
    shown = (done.stdout + done.stderr).replace("\n", "").replace("\t", "")
    assert shown.isprintable()
    assert not made.exists()


@as_root
@others_run_python
@pytest.mark.parametrize(
    ("how", "code"),
    [(("end", 0), 0), (("end", 5), 5), (("die", int(signal.SIGKILL)), 137)],
    ids=["success", "failure", "killed"],
)
def test_exit_code_is_that_of_the_users_process(
    home: Path, how: tuple[object, ...], code: int
) -> None:
    """After a signal it is 128 plus the signal's number, as in a shell."""
    assert act(home, *how).returncode == code


@as_root
@others_run_python
def test_ctrl_c_ends_the_users_process(home: Path) -> None:
    """Ctrl-C reaches the process as in a terminal; the exit code is the process's own."""
    terminal = Terminal(home, "wait")
    terminal.read(b"waits")
    terminal.type(b"\x03")
    assert terminal.code() == 7
    assert b"interrupted" in terminal.shown


@as_root
@others_run_python
def test_second_ctrl_c_kills_a_process_that_stays(home: Path) -> None:
    """The user controls the process, and could keep root waiting."""
    terminal = Terminal(home, "stubborn")
    terminal.read(b"waits")
    terminal.type(b"\x03")
    terminal.read(b"interrupted")
    terminal.type(b"\x03")
    assert terminal.code() == 130


@as_root
@others_run_python
def test_users_process_ends_with_roots_process(home: Path) -> None:
    """This holds even if root's process is killed and can pass nothing on."""
    with start(command(home, "wait"), env=ENVIRONMENT) as root:
        assert root.stdout
        waiting = os.pidfd_open(int(root.stdout.readline().split()[1]))
        root.kill()
        assert select.select([waiting], [], [], patience_s())[0]
        os.close(waiting)


@as_root
@others_run_python
def test_reader_that_has_gone_ends_the_command(home: Path) -> None:
    """With ``| head``, for example, the user's process notices by its own pipe."""
    with start(command(home, "endless"), env=ENVIRONMENT) as root:
        assert root.stdout
        assert root.stdout.readline() == "line\n"
        root.stdout.close()
        root.stdout = None
        assert root.wait() == 9


@as_root
@others_run_python
def test_system_that_forbids_the_change_is_named(home: Path) -> None:
    """A container without the capability, for example: nothing continues as root."""
    none = "-setuid,-setgid"
    limited = ("setpriv", f"--bounding-set={none}", f"--inh-caps={none}")
    done = ROOT.run(*limited, *command(home, "facts"), env=ENVIRONMENT)
    last = done.stderr.splitlines()[-1]
    assert f"uid {ALICE.uid} owns {home}, and dynprof runs as that user there; but the" in last
    assert "the system refuses it: Operation not permitted. run it as that user: sudo -u" in last
    assert done.stdout == ""


PRIVATE = f"import sys\nsys.path.insert(0, sys.argv.pop(1))\nimport private\n{ACT}"


@pytest.fixture
def packages(shared_tmp: Path) -> Path:
    """Return a folder of root with a module."""
    packages = shared_tmp / "packages"
    packages.mkdir(mode=0o700)
    (packages / "private.py").touch()
    return packages


@as_root
@others_run_python
def test_code_that_the_owner_cannot_read_is_refused(home: Path, packages: Path) -> None:
    """If dynprof is in root's home, the message names the folder and the remedy."""
    done = ROOT.python(PRIVATE, packages, home, "facts")
    last = done.stderr.splitlines()[-1]
    assert f"uid {ALICE.uid} owns {home}, and dynprof runs as that user there" in last
    assert f"that user cannot read {packages}, which this dynprof or its Python needs" in last
    assert last.endswith(f"run it as that user: sudo -u '#{ALICE.uid}' dynprof ...")
    assert done.stdout == ""
    packages.chmod(0o755)
    (packages / "private.py").chmod(0o600)
    assert f"cannot read {packages}/private.py" in ROOT.python(PRIVATE, packages, home).stderr


@as_root
@others_run_python
def test_code_that_the_owner_may_read_by_group_or_acl_is_used(home: Path, packages: Path) -> None:
    """Root's process notices an access control list, and lets the system decide."""
    packages.chmod(0o750)
    os.chown(packages, 0, ALICE.uid)
    assert ROOT.python(PRIVATE, packages, home, "end", "3").returncode == 3
    os.chown(packages, 0, 0)
    assert ROOT.python(PRIVATE, packages, home, "end", "3").returncode == 1
    entries = (1, 7, -1), (2, 5, ALICE.uid), (4, 5, -1), (16, 5, -1), (32, 0, -1)
    packed = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(packages, "system.posix_acl_access", struct.pack("<I", 2) + packed)
    except OSError as error:
        assert error.errno == errno.ENOTSUP
        pytest.skip("this file system has no access control lists")
    assert ROOT.python(PRIVATE, packages, home, "end", "3").returncode == 3
