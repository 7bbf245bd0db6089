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

from dynprof.runtime.permissions import why_only_listed
from dynprof.runtime.safe_open import make_dir
from dynprof.runtime.safe_write import PrivateFolder

CONFIG_NAME = "profiler_config.json"
SCHEMA_NAME = "profiler_config.schema.json"
BASELINES_NAME = "baselines_config.json"
"""The config of the save that asked for baselines, next to the config."""
LOG_DIR = "log"
STATUS_DIR = "status"
SLOW_STEPS_DIR = "slow_steps"
INFO_DIR = "info"
"""Next to the traces of a window; HolisticTraceAnalysis takes every other json for a trace."""
ANALYSIS_DIR, VENDORS_ANALYSIS_DIR = "analysis", "ASCEND_PROFILER_OUTPUT"
"""Folders with results of analysis: next to the traces, and the vendor's for one capture."""
METADATA = "profiler_metadata.json"
"""The user's metadata about the capture, next to the trace as with the vendor."""
VENDORS_FOLDER = "_ascend_pt"
"""Suffix of the vendor's name for the folder of one capture."""
VENDORS_VIEW = "trace_view.json"
"""The vendor's name for the trace of one capture, in its folder of tables."""
WINDOW_RECORD = "window.json"
"""The record of a window of several ranks, in the info folder."""
ROLE = r"[A-Za-z0-9-]{1,32}"
"""Regular expression of a role's name, which is part of file names."""
HISTORY_SUFFIX = ".history"
"""Suffix of a rank's step history, next to its status file and otherwise named like it."""
STATUS_FILES, MANIFESTS = "*rank_*.json", "*rank_*.info.json"
"""Patterns for the files of all ranks, with any role."""
RANK_NAME = rf"(?:{ROLE}_)?rank_[0-9]+"
"""Regular expression of the names that :func:`rank_name` returns."""

_RANK_WORD = re.compile(r"([a-z]*)[-_.]?rank[-_.]?(\d{1,9})")
_PART_OF_JOB = re.compile(r"local|node|group|[a-z]p")
"""Words before a rank that is counted within a node or a group only, such as ``local_rank_0``."""
_SGLANG_RANK = re.compile(r"-TP-(\d{1,9})(?:-DP-\d+)?(?:-PP-0)?(?:-EP-\d+)?\.")


def rank_name(role: str, rank: int) -> str:
    """Return the prefix of a rank's file names: ``rank_3``, ``rollout_rank_3``."""
    return f"{role}_rank_{rank}" if role else f"rank_{rank}"


def rank_in_words(role: str, rank: int) -> str:
    """Return ``rank 3``, or ``rollout rank 3``."""
    return f"{role} rank {rank}" if role else f"rank {rank}"


def host_name() -> str:
    """Return this machine's name, reduced to characters that are safe in a file name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "localhost"


@dataclass(frozen=True)
class Layout:
    """The paths where one process reads and writes.

    Attributes:
        root: The directory given to ``init()``, absolute.
        rank: The rank of this process.
        host: The name of this machine.
        pid: The id of this process.
        role: The role of this process in a job of several roles; empty in any other.
        prof_dirs: Absolute directories, other than ``root``, where captures may go.
        urls: URLs where captures may go.
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
        """This rank, and its role, as text."""
        return rank_in_words(self.role, self.rank)

    @property
    def allowed(self) -> tuple[str, ...]:
        """The places other than ``root`` where captures may go."""
        return (*map(str, self.prof_dirs), *self.urls)

    @property
    def config(self) -> Path:
        """The file that operators edit."""
        return self.root / CONFIG_NAME

    @property
    def schema(self) -> Path:
        """The config's JSON Schema, for editors."""
        return self.root / SCHEMA_NAME

    @property
    def log(self) -> Path:
        """The log of this process."""
        return self.root / LOG_DIR / f"dp_{self.host}_{self.pid}_{self._rank}.log"

    @property
    def stacks(self) -> Path:
        """The stacks of this process, as last written; next to its log."""
        return self.log.with_suffix(".stacks")

    @property
    def stacks_request(self) -> Path:
        """The file whose time of modification requests stacks from all ranks."""
        return self.root / STATUS_DIR / "stacks_request"

    @property
    def status(self) -> Path:
        """The status file of this rank."""
        return self.root / STATUS_DIR / f"{self._rank}.json"

    @property
    def duplicate_status(self) -> Path:
        """The status file for a second process of the same rank."""
        return self.root / STATUS_DIR / f"{self._rank}.{self.host}_{self.pid}.json"

    def slow_step(self, step: int, at_s: float) -> Path:
        """Return the path of the record of a slow step, without a suffix."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
        return self.root / SLOW_STEPS_DIR / f"{self._rank}_step_{step}_{stamp}"

    def capture_dir(self, prof_dir: str) -> Path:
        """Return where captures go: ``prof_dir``, taken relative to the config's directory.

        If a link above an allowed place leads to it by another path, the result is the place's own
        path.
        """
        path = Path(os.path.normpath(self.root / prof_dir))
        return path if self._base(path) else Path(os.path.realpath(path))

    def why_forbidden(
        self, path: Path, named_in: Path | None = None, *, listed_only: bool = False
    ) -> str:
        """Return why nothing may be written in a directory, by the rules of the job's owner.

        It must be below the config's directory or one that ``init()`` allowed, with no link in
        between. If only the job's own user can change the config, any other place is allowed too:
        that user could write there anyway. Empty if it may be written.

        Args:
            path: The directory.
            named_in: The file that names it, if that is not the config.
            listed_only: Another rank names it, so this config's permissions do not count.
        """
        if (base := self._base(path)) is None:
            places = " and ".join(map(str, (self.root, *self.prof_dirs)))
            why = why_only_listed(self.config, named_in, listed_only=listed_only)
            return f"{path} is outside of {places}, and {why}" if why else ""
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
        """Create an allowed directory and its parents.

        Raises:
            OSError: The rules forbid it, or it cannot be made.
        """
        if text := self.why_forbidden(path):
            raise PermissionError(errno.EPERM, text)
        make_dir(path)

    def trace_name(self, created_s: float, suffix: str) -> str:
        """Return the trace's file name, in the form that TensorBoard's plugin parses."""
        return f"{self._process}.{int(created_s * 1e3)}.{suffix}"

    @staticmethod
    def window_record(folder: Path) -> Path:
        """Return the path of the leader's record of a window of all ranks."""
        return folder / INFO_DIR / WINDOW_RECORD

    def manifest(self, folder: Path, copy: int = 1) -> Path:
        """Return this rank's manifest in a window's folder.

        Args:
            folder: The window's folder.
            copy: From 2 on if the rank, or another process of it, recorded these steps before.
        """
        return self._info_file(folder, copy, "info.json")

    def stem(self, folder: Path, copy: int = 1) -> Path:
        """Return the prefix of the paths of a capture's other files."""
        name = f"{self._rank}.{copy}" if copy > 1 else self._rank
        return folder / INFO_DIR / name

    def _info_file(self, folder: Path, copy: int, suffix: str) -> Path:
        stem = self.stem(folder, copy)
        return stem.with_name(f"{stem.name}.{suffix}")

    def saving_folder(self, folder: Path, token: str) -> Path:
        """Return the folder where this process puts a trace together; removed after that.

        Args:
            folder: The window's folder.
            token: Distinguishes traces that are saved at the same time.
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
        """Return a subdirectory that no other process uses."""
        return path / self._process

    @property
    def _process(self) -> str:
        role = f"{self.role}_" if self.role else ""
        return f"{self.host}_{self.pid}.{role}rank{self.rank}"

    @property
    def _rank(self) -> str:
        return rank_name(self.role, self.rank)


def own_metadata(stem: str) -> str:
    """Return the name of a capture's metadata file in a folder that has other metadata too.

    Args:
        stem: The prefix of its manifest's name, such as ``rank_0``.
    """
    return f"profiler_metadata_{stem.removeprefix('rank_')}.json"


def pid_namespace() -> str:
    """Return the system's name of this process's pid namespace; empty if there is none."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - the target is no path
    return ""


def window_dir_name(first: int, last: int, edited_at_s: float, role: str = "") -> str:
    """Return the name of a window's folder.

    It is built only from values that are the same on every rank: the steps, the time of the edit in
    UTC, and the role. So all ranks of a window share one folder. Each role has folders of its own.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(edited_at_s))
    return f"step_{first}-{last}_{stamp}{role and f'_{role}'}"


def trace_stem(path: Path) -> str:
    """Return the name of a trace without its suffixes."""
    name = path.name
    for suffix in (".gz", ".json", ".trace"):
        name = name.removesuffix(suffix)
    return name


def rank_in_name(name: str) -> int | None:
    """Return the rank in the name of a file; None if there is none.

    Megatron, torchtitan and vLLM write ``rank-3.json``, ``rank3_trace.json`` and ``..._rank3...``;
    SGLang writes ``...-TP-3.trace.json``. A rank within a part of the job is none.
    """
    words = _RANK_WORD.finditer(name.lower())
    found = [word[2] for word in words if not _PART_OF_JOB.fullmatch(word[1])]
    if not found and (of_sglang := _SGLANG_RANK.search(name)):
        found = [of_sglang[1]]
    return int(found[0]) if found else None


def is_vendors_view(path: Path) -> bool:
    """Return whether a file is the trace that torch_npu's own ``analyse()`` makes of a capture.

    dynprof writes a copy of its trace there too. Its folder has an :data:`INFO_DIR`.
    """
    folder = path.parent
    return (
        path.name == VENDORS_VIEW
        and folder.name == VENDORS_ANALYSIS_DIR
        and folder.parent.name.endswith(VENDORS_FOLDER)
        and not (folder.parent / INFO_DIR).exists()
    )


def free_disk_mb(path: Path) -> float:
    """Return the free megabytes (10**6 bytes) where ``path`` is or would be created."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free / 1e6
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
