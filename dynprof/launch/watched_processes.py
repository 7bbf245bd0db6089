"""Finds the processes of this machine that watch a config, by the logs that they hold open."""

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
        pid: Its id, as this machine counts.
        command: Its command line.
        directory: What it watches.
        rank: The rank that its log names, as in names of files.
        id_inside: The id by which it knows itself.
    """

    pid: int
    command: str
    directory: Path
    rank: str
    id_inside: int

    @functools.cached_property
    def status(self) -> Status | None:
        """What it last said of itself, read on first use; None where that cannot be read."""
        return _status(self.directory, self.rank, self.id_inside)


def watched_processes() -> list[Watched]:
    """Return those of this user."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if one := watched_process(process.pid):
                found.append(one)
    return found


def watched_process(pid: int) -> Watched | None:
    """Return what a process watches; None where it watches nothing.

    Raises:
        psutil.AccessDenied: It is another user's. That of root as well: whoever holds a file open
            under such a name says where root would write.
        psutil.NoSuchProcess: There is none.
    """
    process = psutil.Process(pid)
    if process.uids().real != os.getuid():
        raise psutil.AccessDenied(pid)
    own_id = _id_inside(pid)
    for path in _open_files(pid):
        name = _LOG.fullmatch(path.name) if path.parent.name == LOG_DIR else None
        # What it forks has its log open as well.
        if name and int(name["pid"]) == own_id and path.is_file():
            directory = path.parent.parent
            command = " ".join(process.cmdline()).strip()
            return Watched(pid, command, directory, name["rank"], own_id)
    return None


def _open_files(pid: int) -> list[Path]:
    """Return what a process has open, by name; what cannot be looked at is left out.

    ``psutil.Process.open_files()`` denies all of it where the user may not enter the folder of one
    file, as that of a standard output that root has opened.

    Raises:
        psutil.AccessDenied: The system keeps the process from this user.
        psutil.NoSuchProcess: It has ended.
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
    """Return the id by which a process knows itself, in a container perhaps."""
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
