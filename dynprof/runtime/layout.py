"""Every file name and path rule of the package."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynprof.runtime.folders import make_dir
from dynprof.runtime.output import PrivateFolder
from dynprof.runtime.who_may_change import why_only_listed

CONFIG_NAME = "profiler_config.json"
SCHEMA_NAME = "profiler_config.schema.json"
LOG_DIR = "log"
STATUS_DIR = "status"
INFO_DIR = "info"
"""Beside the traces of a window; HolisticTraceAnalysis takes every other json for a trace."""
ANALYSIS_DIR, VENDORS_ANALYSIS_DIR = "analysis", "ASCEND_PROFILER_OUTPUT"
"""What is made from traces: next to them, and in the vendor's folder of one."""
METADATA = "profiler_metadata.json"
"""Next to the trace, as with the vendor: what the user wrote about the capture."""
VENDORS_FOLDER = "_ascend_pt"
"""What the vendor's name for the folder of one capture ends with."""
WINDOW_RECORD = "window.json"
"""There too: the record of a window of several ranks."""
ROLE = r"[A-Za-z0-9-]{1,32}"
"""What a role may be called, as a regular expression; names of files carry it."""
STATUS_FILES, MANIFESTS = "*rank_*.json", "*rank_*.info.json"
"""Patterns of the names of all ranks' files, of any role."""
RANK_NAME = rf"(?:{ROLE}_)?rank_[0-9]+"
"""What :func:`rank_name` returns, as a regular expression."""


def rank_name(role: str, rank: int) -> str:
    """Return what names of a rank's files begin with: ``rank_3``, ``rollout_rank_3``."""
    return f"{role}_rank_{rank}" if role else f"rank_{rank}"


def rank_in_words(role: str, rank: int) -> str:
    """Return ``rank 3``, or ``rollout rank 3``."""
    return f"{role} rank {rank}" if role else f"rank {rank}"


def host_name() -> str:
    """Return this machine's name, reduced to what is safe in a file name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "localhost"


@dataclass(frozen=True)
class Layout:
    """Where one process reads and writes.

    Attributes:
        root: The directory given to ``init()``, absolute.
        rank: The rank of this process.
        host: The name of this machine.
        pid: The id of this process.
        role: What this process and its ranks do in a job of several roles; empty in any other.
        prof_dirs: Absolute directories beside ``root`` where captures may go.
        urls: The same of what is no directory.
        follow_symlinks: Whether links below these directories are followed.
    """

    root: Path
    rank: int
    host: str
    pid: int
    role: str = ""
    prof_dirs: tuple[Path, ...] = ()
    urls: tuple[str, ...] = ()
    follow_symlinks: bool = False

    @classmethod
    def here(cls, root: Path, rank: int, **rules: Any) -> Layout:
        """Return the layout of the calling process."""
        return cls(root=root, rank=rank, host=host_name(), pid=os.getpid(), **rules)

    @property
    def named(self) -> str:
        """This rank, and its role, in words."""
        return rank_in_words(self.role, self.rank)

    @property
    def allowed(self) -> tuple[str, ...]:
        """Where captures may go beside ``root``."""
        return (*map(str, self.prof_dirs), *self.urls)

    @property
    def config(self) -> Path:
        """The file that operators edit."""
        return self.root / CONFIG_NAME

    @property
    def schema(self) -> Path:
        """The JSON Schema beside it, for editors."""
        return self.root / SCHEMA_NAME

    @property
    def log(self) -> Path:
        """The maintenance log of this process."""
        return self.root / LOG_DIR / f"dp_{self.host}_{self.pid}_{self._rank}.log"

    @property
    def status(self) -> Path:
        """The status file of this rank."""
        return self.root / STATUS_DIR / f"{self._rank}.json"

    @property
    def duplicate_status(self) -> Path:
        """The status file beside another process of the same rank."""
        return self.root / STATUS_DIR / f"{self._rank}.{self.host}_{self.pid}.json"

    def capture_dir(self, prof_dir: str) -> Path:
        """Return where captures go: ``prof_dir``, taken relative to the config's directory.

        A path that names an allowed place by another way, through a link above it, is turned
        into the place's own.
        """
        path = Path(os.path.normpath(self.root / prof_dir))
        return path if self._base(path) else Path(os.path.realpath(path))

    def why_forbidden(
        self, path: Path, named_in: Path | None = None, *, listed_only: bool = False
    ) -> str:
        """Say why nothing may be written in a directory, by the rules of the job's owner.

        It must lie under the config's directory or one that ``init()`` allowed, and no link may
        lead there from it. Any other place will do where only the job's own user can change the
        config: he could write there anyway. Empty if it may be written.

        Args:
            path: The directory.
            named_in: The file that names it, where that is not the config.
            listed_only: Another rank names it: who may change the config here says nothing.
        """
        if (base := self._base(path)) is None:
            places = " and ".join(map(str, (self.root, *self.prof_dirs)))
            why = why_only_listed(self.config, named_in, listed_only=listed_only)
            return f"{path} lies outside of {places}, and {why}" if why else ""
        below = [place for place in (path, *path.parents) if base in place.parents]
        try:
            links = [str(place) for place in below if place.is_symlink()]
        except OSError as error:  # a name that is too long, a loop
            return f"{path} cannot be used: {error.strerror}"
        if links and not self.follow_symlinks:
            return f"{links[-1]} is a symbolic link, which is not followed"
        return ""

    def _base(self, path: Path) -> Path | None:
        allowed = (self.root, *self.prof_dirs)
        return next((place for place in allowed if path.is_relative_to(place)), None)

    def make_dir(self, path: Path) -> None:
        """Create a directory that the rules allow, and its parents.

        Raises:
            OSError: The rules forbid it, or it cannot be made.
        """
        if text := self.why_forbidden(path):
            raise PermissionError(errno.EPERM, text)
        make_dir(path)

    def trace_name(self, created_s: float, suffix: str) -> str:
        """Return the trace's file name, in the form that TensorBoard's plugin splits."""
        return f"{self._process}.{int(created_s * 1e3)}.{suffix}"

    @staticmethod
    def window_record(folder: Path) -> Path:
        """Return what the rank that leads writes about a window of all ranks."""
        return folder / INFO_DIR / WINDOW_RECORD

    def manifest(self, folder: Path, copy: int = 1) -> Path:
        """Return this rank's manifest in a window's folder.

        Args:
            folder: The window's folder.
            copy: 2 and up where the rank recorded these steps before, or another process did.
        """
        return self._info_file(folder, copy, "info.json")

    def stem(self, folder: Path, copy: int = 1) -> Path:
        """Return what the paths of a capture's other files begin with."""
        name = f"{self._rank}.{copy}" if copy > 1 else self._rank
        return folder / INFO_DIR / name

    def _info_file(self, folder: Path, copy: int, suffix: str) -> Path:
        stem = self.stem(folder, copy)
        return stem.with_name(f"{stem.name}.{suffix}")

    def saving_folder(self, folder: Path, token: str) -> Path:
        """Return where this process puts a trace together; not there but while it does.

        Args:
            folder: The window's folder.
            token: Tells it from those of other traces that are saved at the same time.
        """
        return folder / INFO_DIR / f".{self._process}.{token}.saving"

    def make_scratch(self, capture_dir: Path) -> PrivateFolder:
        """Make the folder that a profiler may write in while it records.

        Raises:
            OSError: The rules forbid it, or it cannot be made.
        """
        self.make_dir(capture_dir)
        name = f".{self._process}.{secrets.token_hex(4)}.recording"
        return PrivateFolder(capture_dir / name)

    def own_dir(self, path: Path) -> Path:
        """Return a directory in this one that no other process uses."""
        return path / self._process

    @property
    def _process(self) -> str:
        role = f"{self.role}_" if self.role else ""
        return f"{self.host}_{self.pid}.{role}rank{self.rank}"

    @property
    def _rank(self) -> str:
        return rank_name(self.role, self.rank)


def own_metadata(stem: str) -> str:
    """Return the name of a capture's metadata in a folder where other captures have other metadata.

    Args:
        stem: What the name of its manifest begins with, such as ``rank_0``.
    """
    return f"profiler_metadata_{stem.removeprefix('rank_')}.json"


def pid_namespace() -> str:
    """Return the system's name of the namespace that process ids here count in; empty if none."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - it leads to no path
    return ""


def window_dir_name(first: int, last: int, edited_at_s: float, role: str = "") -> str:
    """Return the name of a window's folder.

    Built only from what every rank sees alike (the steps, the time of the edit in UTC, and the
    role), so that all ranks of a window meet in one folder. Each role has folders of its own.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(edited_at_s))
    return f"step_{first}-{last}_{stamp}{role and f'_{role}'}"


def trace_stem(path: Path) -> str:
    """Return the name of a trace without what says that it is one."""
    name = path.name
    for suffix in (".gz", ".json", ".trace"):
        name = name.removesuffix(suffix)
    return name


def free_disk_mb(path: Path) -> float:
    """Return the free megabytes (10**6 bytes) where ``path`` is or would be created."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free / 1e6
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
