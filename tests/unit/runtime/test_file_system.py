"""The kind of file system of a directory."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from dynprof.runtime import file_system
from dynprof.runtime.file_system import is_remote, kind_of, why_unwritable, why_write_fails

if TYPE_CHECKING:
    from pathlib import Path


def test_the_innermost_mount_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outer mounts do not matter."""
    mounts = [
        SimpleNamespace(mountpoint=place, fstype=kind)
        for place, kind in (("/", "ext4"), (str(tmp_path), "nfs4"), (f"{tmp_path}/a", "xfs"))
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    assert kind_of(tmp_path / "b") == "nfs4"
    assert is_remote(kind_of(tmp_path / "b"))
    assert kind_of(tmp_path / "a" / "c") == "xfs"


def test_an_unknown_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container without /proc, for example, the kind is unknown."""

    def tell(**_: object) -> None:
        raise FileNotFoundError("/proc/self/mounts")

    monkeypatch.setattr(psutil, "disk_partitions", tell)
    assert not kind_of(tmp_path)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"f_bavail": 9}, "the disk is full"),
        ({"f_favail": 0}, "the disk is full"),
        ({"f_files": 0, "f_favail": 0}, ""),
        ({"f_flag": os.ST_RDONLY}, "the disk is read-only"),
    ],
    ids=["room", "bytes", "names", "names not counted", "read-only"],
)
def test_why_a_disk_takes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, int], why: str
) -> None:
    """Some file systems, such as btrfs, count no names."""
    usual = {"f_flag": 0, "f_bavail": 10, "f_frsize": 100, "f_files": 50, "f_favail": 5}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**(usual | changed)))
    assert why_unwritable(tmp_path, 1000) == why


def test_a_write_that_is_tried_leaves_no_file(tmp_path: Path) -> None:
    """A folder that does not exist, and one that this user may not write, say nothing."""
    assert why_write_fails(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    assert why_write_fails(tmp_path / "gone") == ""


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.EROFS, "the disk is read-only"),
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EIO, "the disk reports errors"),
        (errno.EACCES, ""),
        (errno.EPERM, ""),
    ],
)
def test_a_refused_write_tells_why_only_if_it_is_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    """A reader without permission to write learns nothing of the disk."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_system, "try_write", refuse)
    assert why_write_fails(tmp_path) == why
