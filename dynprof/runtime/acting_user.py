"""Run root's commands as the owner of their path, in a process of that user.

A user may put links into a folder that lead to files that only root may access. A user's home may
have settings that libraries obey. So root's process opens none of the user's files. It starts the
command again as that user, shows its output, and ends with its exit code. The user controls the
new process, which has neither root's terminal nor environment nor working directory.

The new process runs this module first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import runpy
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dynprof.errors import OwnerError
from dynprof.runtime.fresh_interpreter import command, environment
from dynprof.runtime.permissions import (
    ROOT,
    TRUST_UIDS,
    has_no_number,
    is_trusted_by_name,
    trusts_all_users,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_LINKS = 40  # Linux follows up to 40 links on the way to a file.
COMMAND = "dynprof.__main__"
MAX_LINE = 1 << 16  # Characters shown at once, so that an endless line fills no memory.
FORWARDED = signal.SIGINT, signal.SIGTERM, signal.SIGHUP  # Passed on to the command.
UNREADABLE = 2
"""The exit code of commands for a path that cannot be read."""
_ACL = "system.posix_acl_access"
_PR_SET_PDEATHSIG = 1
"""Option of ``prctl``: the signal at the end of the parent."""


def owner_on_the_way(path: Path) -> tuple[int, Path, Path]:
    """Return the first user other than root who owns something on the way to a path.

    Users that ``DYNPROF_TRUST_UIDS`` names count as root. So does an owner outside of this user
    namespace: this root is then a container's root, without the rights of the host's root. A link
    counts with its own owner; links of root are followed.

    Args:
        path: It need not exist.

    Returns:
        The uid, which is root's if root owns all that exists; the path that the user owns; and the
        full path without links.

    Raises:
        OwnerError: Other users could still change which file the path leads to.
    """
    try:
        left = list(path.absolute().parts[1:])
    except FileNotFoundError:  # the working directory is gone
        return ROOT, path, path
    reached, links = Path("/"), 0
    while left and links <= MAX_LINKS:
        name = left.pop(0)
        if name == "..":
            reached = reached.parent
            continue
        place = reached / name
        try:
            facts = place.lstat()
        except OSError:  # the command reports the missing path
            _check_not_made(place)
            break
        if not _counts_as_root(facts.st_uid):
            return facts.st_uid, place, place.joinpath(*left)
        _check_not_replaced(place)
        if not stat.S_ISLNK(facts.st_mode):
            reached = place
            continue
        links += 1
        target = place.readlink()
        reached = Path("/") if target.is_absolute() else reached
        left = [*target.parts[target.is_absolute() :], *left]
    return ROOT, path, path


def _counts_as_root(uid: int) -> bool:
    try:
        return uid == ROOT or has_no_number(uid) or is_trusted_by_name(uid)
    except ValueError as error:
        raise OwnerError(str(error)) from None


def _check_not_made(place: Path) -> None:
    """Refuse a missing path that another user could create before root opens it."""
    if _others_may_write(place.parent.lstat()):
        text = (
            f"there is no {place}. Check the path; root's commands make nothing there, since other"
        )
        text = f"{text} users may write {place.parent}. For a new folder, mkdir it first"
        raise OwnerError(text)


def _check_not_replaced(place: Path) -> None:
    """Refuse a path of root that another user could replace before root opens it."""
    facts, folder = place.parent.lstat(), shlex.quote(str(place.parent))
    if _others_may_write(facts) and not facts.st_mode & stat.S_ISVTX:
        text = f"other users may replace {place}, which is root's, since they may write"
        raise OwnerError(f"{text} {place.parent}. Set its sticky bit: chmod +t {folder}")


def _others_may_write(facts: os.stat_result) -> bool:
    group = facts.st_mode & stat.S_IWGRP and facts.st_gid != ROOT
    return not trusts_all_users() and bool(group or facts.st_mode & stat.S_IWOTH)


@dataclass(frozen=True)
class User:
    """A user that a command runs as.

    Attributes:
        uid: The number.
        gid: The main group; without an account the uid, as most systems assign it. Not the group of
            the folder, which may be root's.
        name: The name of the account; empty without one.
        home: The home directory.
    """

    uid: int
    gid: int
    name: str
    home: str

    @classmethod
    def of(cls, uid: int) -> User:
        """Return the user with a number; the user may have no account."""
        try:
            account = pwd.getpwuid(uid)
        except KeyError:
            return cls(uid, uid, "", "/")
        return cls(uid, account.pw_gid, account.pw_name, account.pw_dir)

    def __str__(self) -> str:
        """Return the user as messages show it."""
        return f"{self.name} (uid {self.uid})" if self.name else f"uid {self.uid}"

    def groups(self) -> list[int]:
        """Return the groups of the account; never empty, because some Pythons then keep root's."""
        return os.getgrouplist(self.name, self.gid) if self.name else [self.gid]

    def variables(self) -> dict[str, str]:
        """Return the environment of the command, without secrets and folders of root."""
        name = self.name or str(self.uid)
        more = {"HOME": self.home, "USER": name, "LOGNAME": name}
        if sys.stdout and sys.stdout.isatty():
            more["COLUMNS"] = str(shutil.get_terminal_size().columns)
        known = environment(**more)
        return {one: value for one, value in known.items() if not one.startswith("XDG_")}


def act_as_owner(
    path: Path, printable: Callable[[str], str], *, named: str = "", module: str = COMMAND
) -> Path:
    """Where root runs this process, run the command as the user who owns a path.

    :func:`owner_on_the_way` finds the user. If root owns the whole way, or another user runs this
    process, nothing happens. Otherwise this process ends when the command has ended.

    Args:
        path: The path of the command; it need not exist.
        printable: Escapes control characters for the terminal.
        named: The path as the command line has it, if it differs.
        module: The module that is the command.

    Returns:
        The same path.

    Raises:
        OwnerError: The command cannot run as that user. Or root owns the whole way, and other
            users could still change where it leads.
        SystemExit: The command ran as that user.
    """
    if os.geteuid() != ROOT:
        return path
    uid, place, direct = owner_on_the_way(path)
    if uid == ROOT:
        return path
    user = User.of(uid)
    why = f"{user} owns {place}, and dynprof runs as that user there"
    if hidden := _first_unreadable(user, _loaded_files()):
        raise OwnerError(_unreadable(why, hidden, user))
    arguments = _renamed(sys.argv[1:], Path(named or path), direct, after=module == COMMAND)
    print(printable(f"acting as {user}, who owns {place}"), file=sys.stderr, flush=True)
    try:
        child = _started(user, (_working_dir(), str(place), str(direct), module, *arguments))
    except OSError as error:
        if error.filename == sys.executable:
            raise OwnerError(_unreadable(why, Path(sys.executable), user)) from None
        text = f"{why}; but the system refuses it: {error.strerror or error}. {_sudo_advice(user)}"
        raise OwnerError(text) from None
    sys.exit(_wait_for(child, printable))


def _started(user: User, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("dynprof.runtime.acting_user", *arguments),
        user=user.uid,
        group=user.gid,
        extra_groups=user.groups(),
        env=user.variables(),
        cwd="/",
        start_new_session=True,  # without root's terminal
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _wait_for(child: subprocess.Popen[str], printable: Callable[[str], str]) -> int:
    """Show the output of a command until it ends; return its exit code as a shell does."""
    pipes = ((child.stdout, 1), (child.stderr, 2))
    relays = [threading.Thread(target=_relay, args=(*one, printable), daemon=True) for one in pipes]
    with _forward_signals(child.pid):
        for relay in relays:
            relay.start()
        for relay in relays:
            relay.join()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # keeps the pid reserved
    code = child.wait()
    return code if code >= 0 else 128 - code


def _relay(source: IO[str], descriptor: int, printable: Callable[[str], str]) -> None:
    """Copy lines as text; if this process's reader is gone, the command gets a closed pipe too."""
    with (
        source,
        contextlib.suppress(OSError),
        open(descriptor, "w", errors="backslashreplace", closefd=False) as shown,
    ):
        for line in iter(lambda: source.readline(MAX_LINE), ""):
            shown.write("".join(one if one in "\n\t" else printable(one) for one in line))
            shown.flush()


@contextlib.contextmanager
def _forward_signals(pid: int) -> Iterator[None]:
    """Forward signals that would end this process; the second one kills the command and this."""
    seen: list[int] = []

    def forward(number: int, _: object) -> None:
        if seen:
            os.kill(pid, signal.SIGKILL)
            os._exit(128 + number)
        seen.append(number)
        os.kill(pid, number)

    kept = [one for one in FORWARDED if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, forward) for one in kept}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _working_dir() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "/"


def _renamed(arguments: list[str], path: Path, direct: Path, *, after: int) -> list[str]:
    """Return arguments in which the first one from ``after`` that is ``path`` is ``direct``."""
    for i in range(after, len(arguments)):
        if arguments[i] and Path(arguments[i]) == path:
            return [*arguments[:i], str(direct), *arguments[i + 1 :]]
    return arguments


def _loaded_files() -> list[Path]:
    """Return the interpreter and the files that this process has loaded."""
    named = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = [Path(sys.executable), *(Path(one) for one in named if isinstance(one, str))]
    return [file for file in files if file.is_file()]


def _first_unreadable(user: User, files: list[Path]) -> Path | None:
    """Return the first file that a user cannot read, or the folder that blocks the way to it.

    The mode bits decide, because root itself may read everything. If a file has an access control
    list, the system decides later.
    """
    groups = {user.gid, *user.groups()}
    ways = {place for file in files for place in (file, Path(os.path.realpath(file)))}
    folders = {folder for file in ways for folder in file.parents}
    for place in (*sorted(folders), *sorted(ways)):
        facts = place.stat()
        wanted = stat.S_IXOTH if place in folders else stat.S_IROTH
        if facts.st_uid == user.uid:
            wanted <<= 6
        elif facts.st_gid in groups:
            wanted <<= 3
        if not facts.st_mode & wanted and not _has_acl(place):
            return place
    return None


def _has_acl(place: Path) -> bool:
    try:
        return _ACL in os.listxattr(place)
    except OSError:
        return False


def _unreadable(why: str, hidden: Path, user: User) -> str:
    text = f"{why}; but that user cannot read {hidden}, which this dynprof or its Python needs"
    return f"{text}. Install dynprof where all can read it, or {_sudo_advice(user)}"


def _sudo_advice(user: User) -> str:
    named = shlex.quote(user.name or f"#{user.uid}")
    return f"run it as that user: sudo -u {named} dynprof ..."


def _run(here: str, place: str, path: str, module: str, *arguments: str) -> None:
    """Run the command that root typed, as the user of this process.

    Args:
        here: Root's working directory.
        place: The part of the path that this user owns.
        path: The path of the command.
        module: The command's module.
        arguments: Its arguments.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)  # if root's process is killed
    user = User.of(os.getuid())
    _check_readable(path, place, user)
    entered = True
    try:
        os.chdir(here)
    except OSError:
        entered = False
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code and not entered and any(map(_is_relative, arguments[1:])):
            text = f"relative paths count from /, since {user} may not enter {here}"
            print(f"{text}; write absolute paths", file=sys.stderr)
        raise


def _is_relative(argument: str) -> bool:
    """Return whether an argument may be a relative path."""
    return not argument.startswith(("-", "/")) and not argument.isdecimal()


def _check_readable(path: str, place: str, user: User) -> None:
    """End with a message if a path exists and this user may not read it."""
    try:
        os.stat(path)  # noqa: PTH116
        readable = os.access(path, os.R_OK)
    except PermissionError:
        readable = False
    except OSError:  # the command reports the missing path
        return
    if not readable:
        text = f"{path} cannot be read by {user}, who owns {place}; dynprof runs as that user"
        text = f"{text}. A path of root must belong to root from end to end. In a container with"
        text = f"{text} one user, trust that user with root's rights: {TRUST_UIDS}={user.uid}"
        print(text, file=sys.stderr)
        sys.exit(UNREADABLE)


if __name__ == "__main__":
    _run(*sys.argv[1:])
