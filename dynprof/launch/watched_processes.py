"""Finds the processes on this machine that watch a config, by their open log files."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from dynprof.errors import CaptureError
from dynprof.journal.status import Status, load_status
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
