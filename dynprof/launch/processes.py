"""Finds the processes of this user: those that watch a config, and those that could.

A process that watches has its log open. Those that run Python and may be ranks of a job are
candidates for attaching.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from dynprof.errors import CaptureError
from dynprof.journal.status import Status, load_status
from dynprof.launch.environment import LAUNCHERS, Program, rank_text, why_not_a_rank
from dynprof.launch.foreign_process import why_not_reached
from dynprof.runtime.layout import LOG_DIR, RANK_NAME, STATUS_DIR

_LOG = re.compile(rf"dp_[^_]+_(?P<pid>\d+)_(?P<rank>{RANK_NAME})\.log")


@dataclass(frozen=True)
class Watched:
    """A process that watches a config.

    Attributes:
        pid: Its PID on this machine.
        command: Its command line.
        directory: The directory that it watches.
        rank: The rank in the name of its log, as in file names.
        id_inside: Its PID in its own PID namespace.
    """

    pid: int
    command: str
    directory: Path
    rank: str
    id_inside: int

    @functools.cached_property
    def status(self) -> Status | None:
        """Its last status, read on first use; None if it cannot be read."""
        return _status(self.directory, self.rank, self.id_inside)


def watched_processes() -> list[Watched]:
    """Return the watching processes of this user."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if one := watched_process(process.pid):
                found.append(one)
    return found


def watched_process(pid: int) -> Watched | None:
    """Return what a process watches; None if it watches nothing.

    Raises:
        psutil.AccessDenied: It belongs to another user. Root is refused too: by an open file with
            such a name, a user could choose where root writes.
        psutil.NoSuchProcess: There is no such process.
    """
    process = psutil.Process(pid)
    if process.uids().real != os.getuid():
        raise psutil.AccessDenied(pid)
    own_id = _id_inside(pid)
    for path in _open_files(pid):
        name = _LOG.fullmatch(path.name) if path.parent.name == LOG_DIR else None
        # Its forked children have its log open too.
        if name and int(name["pid"]) == own_id and path.is_file():
            directory = path.parent.parent
            command = " ".join(process.cmdline()).strip()
            return Watched(pid, command, directory, name["rank"], own_id)
    return None


def _open_files(pid: int) -> list[Path]:
    """Return the paths of the open files of a process; unreadable entries are left out.

    ``psutil.Process.open_files()`` fails as a whole if the user may not enter the folder of one
    file, such as a standard output that root has opened.

    Raises:
        psutil.AccessDenied: This user may not inspect the process.
        psutil.NoSuchProcess: The process has ended.
    """
    found = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed in the meantime
                found.append(entry.readlink())
    except PermissionError:
        raise psutil.AccessDenied(pid) from None
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    return found


def _id_inside(pid: int) -> int:
    """Return the PID of a process in its own PID namespace, as in a container."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid


def _status(directory: Path, rank: str, pid: int) -> Status | None:
    for path in sorted((directory / STATUS_DIR).glob(f"{rank}*.json")):
        with contextlib.suppress(CaptureError):
            status = load_status(path)
            if status.pid == pid:
                return status
    return None


@dataclass(frozen=True)
class Candidate:
    """A process that runs Python.

    Attributes:
        process: The process.
        command: Its command line.
        folder: Its working directory.
        runs: The script or module that it runs, or the first word of its title.
        why_not: Why it cannot be attached to; empty if it can.
    """

    process: psutil.Process
    command: str
    folder: Path
    runs: str
    why_not: str

    @property
    def pid(self) -> int:
        """Its PID."""
        return self.process.pid

    @property
    def path(self) -> str:
        """Absolute path of what it runs, which selects it."""
        return _absolute(self.folder, self.runs)


def candidates(name: str = "") -> list[Candidate]:
    """Return the processes of this user that run a script or module in Python, by PID.

    Launchers, tools, pool workers, and processes that a rank forked or started as helpers are left
    out.

    Args:
        name: The script or module, or the title set with setproctitle; ``*`` matches any text. A
            name with a slash is a path, relative to the caller's working directory; scripts are
            relative to that of their process. Empty for all.
    """
    found: dict[int, tuple[psutil.Process, str]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            rank = _rank_of(process, name)
            if rank is not None:
                found[process.pid] = process, rank
    kept = []
    for pid, (process, rank) in sorted(found.items()):
        with contextlib.suppress(psutil.Error, OSError):
            if any(found[a.pid][1] == rank for a in process.parents() if a.pid in found):
                continue
            folder, called = Path(process.cwd()), process.cmdline()
            runs, command = _script_or_title(called), " ".join(called).strip()
            kept.append(Candidate(process, command, folder, runs, why_not_reached(pid)))
    return kept


def starts_ranks(pid: int) -> str:
    """Return which launcher a process runs; empty if none, or if it cannot be inspected."""
    with contextlib.suppress(psutil.Error, OSError):
        program = _program(psutil.Process(pid).cmdline())
        if program.is_one_of(LAUNCHERS):
            return program.short_name
    return ""


def _rank_of(process: psutil.Process, name: str) -> str | None:
    """Return the rank that a launcher gave to a process; None if it is not a candidate."""
    if process.pid == os.getpid() or process.uids() != psutil.Process().uids():
        return None
    called = process.cmdline()
    if "python" not in Path(process.exe()).name:
        return None
    title = _title(called)
    program = Program("script", title) if title else _program(called)
    if "/" in name:
        names = {_absolute(process.cwd(), _script_or_title(called))}
        name = _absolute(os.getcwd(), name)  # noqa: PTH109
    else:
        names = {program.name, title.partition(" ")[0] or Path(program.name).name}
    if name and not any(one == name or fnmatch.fnmatchcase(one, name) for one in names):
        return None
    if why_not_a_rank(program, {}, process.pid):
        return None
    return f"{rank_text(process.environ())}{title}"


def _script_or_title(called: list[str]) -> str:
    """Return the script or module from a command line, or the first word of a title."""
    return _title(called).partition(" ")[0] or _program(called).name


def _absolute(folder: str | Path, path: str) -> str:
    """Return an absolute path; only links in its folder are resolved."""
    whole = Path(os.path.abspath(Path(folder, path)))  # noqa: PTH100 - ".." as in a shell
    return str(Path(os.path.realpath(whole.parent), whole.name))


def _title(called: list[str]) -> str:
    """Return the title that a process has set over its command line; empty for none.

    vLLM, SGLang and Ray set the titles of their worker processes.
    """
    return "" if not called or "python" in Path(called[0]).name else " ".join(called).strip()


def _program(called: list[str]) -> Program:
    """Return what an interpreter runs, from its command line."""
    words = iter(called[1:])
    for word in words:
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, None)
        elif word[:2] in ("-m", "-c"):
            kind = "module" if word[1] == "m" else "code"
            return Program(kind, word[2:] or next(words, ""))
        elif not word.startswith("-"):
            return Program("script", word)
    return Program("terminal", "")
