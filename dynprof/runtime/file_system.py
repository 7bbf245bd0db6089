"""The file system that a directory is on, and mount points."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

import psutil

from dynprof.runtime.safe_write import try_write

if TYPE_CHECKING:
    from pathlib import Path

_REMOTE = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "drvfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "prl_fs",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "wekafs",
    ]
)
_TRIED_BYTES = 1 << 16
"""Size of the file that is tried: more than a status file."""
_REFUSALS = {
    errno.EROFS: "the disk is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the disk reports errors",
}
"""Errors that say something of the disk. A reader without permission to write learns nothing."""


def kind_of(directory: Path) -> str:
    """Return the system's name for the type of file system; empty if it is unknown."""
    with contextlib.suppress(OSError):  # a container may have no /proc
        every = psutil.disk_partitions(all=True)
        mounts = [mount for mount in every if directory.is_relative_to(mount.mountpoint)]
        return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
    return ""


def is_mount_point(path: Path) -> bool:
    """Return whether a path itself is a mount point, as ``docker run -v file:file`` makes it."""
    with contextlib.suppress(OSError):  # a container may have no /proc
        real = os.path.realpath(path)
        return any(mount.mountpoint == real for mount in psutil.disk_partitions(all=True))
    return False


def file_mount_problem(path: Path) -> str:
    """Return why edits of a config that is itself mounted are not seen; empty if it is not."""
    if not is_mount_point(path):
        return ""
    seen = "a file that replaces it outside, as most editors save, is not seen here"
    with contextlib.suppress(OSError):
        if path.stat().st_nlink == 0:
            seen = "outside it was replaced, and only the old file is seen here"
    return f"{path} is a mount of its own: {seen}; mount its directory instead"


def is_remote(kind: str) -> bool:
    """Return whether other machines may change the files; inotify does not report that.

    Every FUSE file system counts as remote.
    """
    return kind in _REMOTE or kind.startswith("fuse")


def why_unwritable(directory: Path, size_bytes: int) -> str:
    """Return why a directory's file system takes no new file of a size; empty if it may."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return ""
    if found.f_flag & os.ST_RDONLY:
        return "the disk is read-only"
    is_full = found.f_bavail * found.f_frsize < size_bytes
    return "the disk is full" if is_full or (found.f_files and not found.f_favail) else ""


def why_write_fails(directory: Path) -> str:
    """Try a write in a directory; return why its disk refuses it, empty if it does not.

    ``statvfs`` names neither a used-up quota nor an ext4 that an error has made read-only.
    """
    try:
        try_write(directory, _TRIED_BYTES)
    except OSError as error:
        return _REFUSALS.get(error.errno or 0, "")
    return ""
