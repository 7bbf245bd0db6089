"""The memory that a process may still allocate."""

from __future__ import annotations

import resource
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from dynprof.runtime import memory

if TYPE_CHECKING:
    from pathlib import Path

GB = 1_000_000_000


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of cgroups, on a machine with 50 GB free."""
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "mine")
    machine = SimpleNamespace(available=50 * GB, total=64 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return tmp_path / "groups"


def group(folder: Path, files: tuple[str, str], most: object, used: int, stat: str) -> None:
    """Create a cgroup."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (*zip(files, (most, used), strict=True), ("memory.stat", stat)):
        (folder / name).write_text(f"{value}\n")


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_without_groups_the_machines_memory_counts(groups: Path) -> None:
    """This is a machine without containers, or one that is not Linux."""
    assert not groups.exists()
    assert memory.free_mb() == 50_000


@pytest.mark.parametrize("ranks", [1, 8])
def test_ranks_of_a_machine_share_it(
    groups: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """Ranks of a machine share its memory, because they open windows at the same time."""
    assert groups
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert memory.free_mb() == 50_000 / ranks


@pytest.mark.parametrize("path", ["/", "/pods/this", "/of/the/machine/outside"])
def test_a_container_has_the_free_memory_of_its_group(groups: Path, path: str) -> None:
    """Inside a container the own group is the root; a cache of files can be freed."""
    groups.parent.joinpath("mine").write_text(f"0::{path}\n")
    group(groups, V2, 10 * GB, 8 * GB, f"anon 1\ninactive_file {GB}\nactive_file {2 * GB}\nfile 9")
    assert memory.free_mb() == 5_000


def test_a_group_without_a_cache_figure(groups: Path) -> None:
    """The limit minus the usage counts."""
    groups.parent.joinpath("mine").write_text("0::/\n")
    group(groups, V2, 10 * GB, 8 * GB, "anon 1\n\nodd")
    assert memory.free_mb() == 2_000


def test_the_narrowest_enclosing_group_counts(groups: Path) -> None:
    """A group without a limit says ``max``; a full one has nothing left."""
    groups.parent.joinpath("mine").write_text("0::/pods/this\n")
    group(groups / "pods" / "this", V2, "max", 2 * GB, "inactive_file 0")
    group(groups / "pods", V2, 9 * GB, 5 * GB, "inactive_file 0")
    assert memory.free_mb() == 4_000
    group(groups / "pods", V2, 9 * GB, 10 * GB, "inactive_file 0")
    assert memory.free_mb() == 0


def test_groups_of_the_first_version(groups: Path) -> None:
    """Groups of version 1 have a separate tree for memory."""
    groups.parent.joinpath("mine").write_text("5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n")
    cache = f"inactive_file 7\ntotal_inactive_file {GB}\ntotal_active_file {GB}"
    group(groups / "memory" / "a", V1, 6 * GB, 5 * GB, cache)
    assert memory.free_mb() == 3_000


@pytest.mark.parametrize(("limit", "has"), [("RLIMIT_AS", "vms"), ("RLIMIT_DATA", "data")])
def test_the_limits_of_the_process_leave_less(
    groups: Path, monkeypatch: pytest.MonkeyPatch, limit: str, has: str
) -> None:
    """Other ranks do not share these limits."""
    assert groups
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    number = getattr(resource, limit)
    monkeypatch.setattr(
        resource, "getrlimit", lambda of: (4 * GB if of == number else resource.RLIM_INFINITY, -1)
    )
    monkeypatch.setattr(
        memory,
        "_process",
        lambda _: SimpleNamespace(memory_info=lambda: SimpleNamespace(**{has: 3 * GB})),
    )
    assert memory.free_mb() == 1_000


def test_memory_of_this_process_is_read() -> None:
    """The value is within that of a second look a moment later."""
    assert memory.resident_mb() == pytest.approx(psutil.Process().memory_info().rss / 1e6, rel=0.1)


def test_a_slow_allocator_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call walks all free pieces, and blocks allocation for that time."""
    now_s = iter([0.0, 0.01, 1.0, 1.03])
    monkeypatch.setattr(time, "thread_time", lambda: next(now_s))
    allocator = memory._Allocator()
    assert allocator.in_use_mb()
    assert allocator.in_use_mb()
    assert allocator.in_use_mb() is None
