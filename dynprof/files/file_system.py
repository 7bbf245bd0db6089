"""What kind of file system a directory is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

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


def kind_of(directory: Path) -> str:
    """Return the system's name of the kind; empty where nobody knows."""
    mounts = [p for p in psutil.disk_partitions(all=True) if directory.is_relative_to(p.mountpoint)]
    return max(mounts, key=lambda p: len(p.mountpoint)).fstype if mounts else ""


def is_remote(kind: str) -> bool:
    """Return whether other machines may have it: their changes never reach inotify.

    Every FUSE is taken for one.
    """
    return kind in _REMOTE or kind.startswith("fuse")
