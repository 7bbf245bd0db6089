"""As whom root's commands run: as the owner of their path, in a process of that user's.

A user may put links into a folder that lead to what only root may read or write, and settings into
a home that libraries obey. So root's process opens nothing of the user's: it starts the command
again as that user, shows what that prints, and ends with its exit code. The user controls the new
process; it has neither root's terminal nor environment nor working directory.

This module is also what the new process runs first.
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
from dynprof.runtime.who_may_change import (
    ROOT,
    TRUST_UIDS,
    has_no_number,
    is_trusted_by_name,
    trusts_all_users,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_LINKS = 40  # The kernel follows no more on the way to a file.


def owner_on_the_way(path: Path) -> tuple[int, Path, Path]:
    """Return the first user but root who owns something on the way to a path.

    Users that ``DYNPROF_TRUST_UIDS`` names count as root. So does an owner outside of this user
    namespace: this root is then that of a container, and has no rights of the host's root. A link
    counts with its own owner; root's links are followed.

    Args:
        path: It need not exist.

    Returns:
        The uid, root's where all that exists is root's; what that user owns; and the path through
        no link that leads there.

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
        except OSError:  # the command says that nothing is there
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
    """Refuse what is not there, and what another user could put there before root opens it."""
    if _others_may_write(place.parent.lstat()):
        text = (
            f"there is no {place}. Check the path; root's commands make nothing there, since other"
        )
        text = f"{text} users may write {place.parent}. For a new folder, mkdir it first"
        raise OwnerError(text)


def _check_not_replaced(place: Path) -> None:
    """Refuse what is root's, where another user could replace it before root opens it."""
    facts, folder = place.parent.lstat(), shlex.quote(str(place.parent))
    if _others_may_write(facts) and not facts.st_mode & stat.S_ISVTX:
        text = f"other users may replace {place}, which is root's, since they may write"
        raise OwnerError(f"{text} {place.parent}. Set its sticky bit: chmod +t {folder}")


def _others_may_write(facts: os.stat_result) -> bool:
    group = facts.st_mode & stat.S_IWGRP and facts.st_gid != ROOT
    return not trusts_all_users() and bool(group or facts.st_mode & stat.S_IWOTH)


COMMAND = "dynprof.__main__"
MAX_LINE = 1 << 16  # Characters shown at once: a line without an end fills no memory.
FORWARDED = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
UNREADABLE = 2
"""The exit code of commands for a path that cannot be read."""
_ACL = "system.posix_acl_access"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class User:
    """A user that a command runs as.

    Attributes:
        uid: The number.
        gid: The main group; without an account the number of the user, as most systems give it.
            Not the group of the folder, which may be root's.
        name: The name of the account; empty without one.
        home: The home directory.
    """

    uid: int
    gid: int
    name: str
    home: str

    @classmethod
    def of(cls, uid: int) -> User:
        """Return the user with a number, who may have no account."""
        try:
            account = pwd.getpwuid(uid)
        except KeyError:
            return cls(uid, uid, "", "/")
        return cls(uid, account.pw_gid, account.pw_name, account.pw_dir)

    def __str__(self) -> str:
        """Return how messages name the user."""
        return f"{self.name} (uid {self.uid})" if self.name else f"uid {self.uid}"

    def groups(self) -> list[int]:
        """Return the groups of the account; never empty, which some Pythons take for root's."""
        return os.getgrouplist(self.name, self.gid) if self.name else [self.gid]

    def variables(self) -> dict[str, str]:
        """Return the environment of the command: no secret of root's, and no folder of root's."""
        name = self.name or str(self.uid)
        more = {"HOME": self.home, "USER": name, "LOGNAME": name}
        if sys.stdout and sys.stdout.isatty():
            more["COLUMNS"] = str(shutil.get_terminal_size().columns)
        known = environment(**more)
        return {one: value for one, value in known.items() if not one.startswith("XDG_")}


def act_as_owner(
    path: Path, printable: Callable[[str], str], *, named: str = "", module: str = COMMAND
) -> Path:
    """Run the command as the user who owns a path instead, where root runs this process.

    :func:`owner_on_the_way` says who that is. Where all of it is root's, and for every other user,
    nothing happens. Else this process ends when the command has ended.

    Args:
        path: What the command was given; it need not exist.
        printable: Escapes what a terminal would obey.
        named: How the command line names the path, where it does so otherwise.
        module: The module that is the command.

    Returns:
        The same path.

    Raises:
        OwnerError: The command cannot run as that user; or all of it is root's, and other users
            could still change where it leads.
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
    """Show what a command prints until it ends; return its exit code, as a shell would."""
    pipes = ((child.stdout, 1), (child.stderr, 2))
    relays = [threading.Thread(target=_relay, args=(*one, printable), daemon=True) for one in pipes]
    with _forward_signals(child.pid):
        for relay in relays:
            relay.start()
        for relay in relays:
            relay.join()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its number stays its own
    code = child.wait()
    return code if code >= 0 else 128 - code


def _relay(source: IO[str], descriptor: int, printable: Callable[[str], str]) -> None:
    """Copy lines as text; where this process's reader has gone, let the command see that too."""
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
    """Send what would end this process to the command; end it and this process at the second."""
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
    """Return arguments in which the first that names a path, after some, is a direct path."""
    for i in range(after, len(arguments)):
        if arguments[i] and Path(arguments[i]) == path:
            return [*arguments[:i], str(direct), *arguments[i + 1 :]]
    return arguments


def _loaded_files() -> list[Path]:
    """Return the interpreter and the files that this process has loaded; more lie next to them."""
    named = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = [Path(sys.executable), *(Path(one) for one in named if isinstance(one, str))]
    return [file for file in files if file.is_file()]


def _first_unreadable(user: User, files: list[Path]) -> Path | None:
    """Return the first file that a user cannot read, or the folder that bars the way to it.

    The bits of each mode decide: root itself may read everything. Where there is an access control
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
    text = f"{why}; but that user cannot read {hidden}, where this dynprof or its Python lies"
    return f"{text}. Install dynprof where all can read it, or {_sudo_advice(user)}"


def _sudo_advice(user: User) -> str:
    named = shlex.quote(user.name or f"#{user.uid}")
    return f"run it as that user: sudo -u {named} dynprof ..."


def _run(here: str, place: str, path: str, module: str, *arguments: str) -> None:
    """Be the command that root typed, as the user of this process.

    Args:
        here: Root's working directory.
        place: What of the path is this user's.
        path: The path because of which the command runs so.
        module: The command's module.
        arguments: Its arguments.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)  # where root's process is killed
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
            print(f"{text}: give absolute ones", file=sys.stderr)
        raise


def _is_relative(argument: str) -> bool:
    """Return whether an argument may be a relative path."""
    return not argument.startswith(("-", "/")) and not argument.isdecimal()


def _check_readable(path: str, place: str, user: User) -> None:
    """End with a message where a path exists, and this user may not read it."""
    try:
        os.stat(path)  # noqa: PTH116
        readable = os.access(path, os.R_OK)
    except PermissionError:
        readable = False
    except OSError:  # it is not there; the command says so
        return
    if not readable:
        text = f"{path} cannot be read by {user}, as whom dynprof acts: {place} is that user's"
        text = f"{text}. A path of root's must be root's from end to end; or, as in a container of"
        text = f"{text} one user, trust that user with root's rights: {TRUST_UIDS}={user.uid}"
        print(text, file=sys.stderr)
        sys.exit(UNREADABLE)


if __name__ == "__main__":
    _run(*sys.argv[1:])
