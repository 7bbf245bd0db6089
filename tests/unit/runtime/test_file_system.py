"""The kind of file system of a directory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil

from dynprof.runtime.file_system import is_remote, kind_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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
