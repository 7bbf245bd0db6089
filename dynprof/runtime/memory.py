"""Memory of this process: what it uses, what it may still get, and how to release free memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from dynprof.runtime.rank import ranks_here

if TYPE_CHECKING:
    from collections.abc import Iterator

_MB = 1e6
"""Bytes of a MB."""
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_OF_VERSION = {
    2: ("memory.max", "memory.current", ("inactive_file", "active_file")),
    1: (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
}
"""For each version of cgroups: the limit, the usage, and reclaimable file caches in it.
Source: Linux, admin-guide/cgroup-v2 and cgroup-v1/memory."""
SLOW_S = 0.02
"""If the allocator takes longer to answer, it is not called again: it blocks all allocations."""
_ALLOCATED = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


def resident_mb() -> float:
    """Return the resident memory of this process in MB (10^6 bytes)."""
    return float(_process(os.getpid()).memory_info().rss) / _MB


def grown_mb(since_mb: float = 0.0) -> float:
    """Return how many MB were added since; 0 if unknown, e.g. with too many open files."""
    with contextlib.suppress(OSError, psutil.Error):
        return resident_mb() - since_mb
    return 0.0


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> psutil.Process:
    """Return the psutil object of a process, cached: each step needs it, and it is slow to make."""
    return psutil.Process(pid)


class Limit(NamedTuple):
    """A limit of the memory that this process may use.

    Attributes:
        name: What limits it, as the subject of a sentence.
        left_mb: The MB (10^6 bytes) that are left.
        total_mb: The limit itself, in MB.
        is_own: Whether only this process counts, and no other one of the machine or container.
    """

    name: str
    left_mb: float
    total_mb: float
    is_own: bool


def limits() -> list[Limit]:
    """Return the limits of this process's memory.

    They are the machine's memory, those of a container's cgroups, and the process's own
    ones (``RLIMIT_AS`` and ``RLIMIT_DATA``).
    """
    machine = psutil.virtual_memory()
    found = [("the machine", machine.available, machine.total, False)]
    found += [  # version 1 has a huge number for no limit
        (name, left, most, False) for name, left, most in _left_in_groups() if most <= machine.total
    ]
    found += [(name, left, most, True) for name, left, most in _left_of_limits()]
    return [Limit(name, left / _MB, most / _MB, own) for name, left, most, own in found]


def free_mb() -> float:
    """Return how many MB (10^6 bytes) this process may still get, next to other ranks here.

    What the machine and a container have left is divided by the launcher's number of processes
    here (``LOCAL_WORLD_SIZE``). The process's own limits may leave less.
    """
    ranks = ranks_here()
    return min(one.left_mb if one.is_own else one.left_mb / ranks for one in limits())


class _Allocator:
    """glibc's allocator, which reports allocated bytes since version 2.33."""

    def __init__(self) -> None:
        self._is_slow = False

    def in_use_mb(self) -> float | None:
        """Return how many MB (10^6 bytes) are allocated; None if the allocator cannot tell.

        Unlike resident memory, this excludes freed memory and gaps. The allocator walks all free
        pieces, half a second for a million; after a slow call it is not called again.
        """
        if self._is_slow:
            return None
        before_s = time.thread_time()
        with contextlib.suppress(OSError, AttributeError):
            mallinfo2 = ctypes.CDLL(None).mallinfo2
            mallinfo2.restype = _Allocated
            found = mallinfo2()
            self._is_slow = time.thread_time() - before_s > SLOW_S
            return float(found.uordblks + found.hblkhd) / _MB
        return None


in_use_mb = _Allocator().in_use_mb


class _Allocated(ctypes.Structure):
    """The result of ``mallinfo2``: malloc.h."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _ALLOCATED.split())


def release_free_memory() -> None:
    """Return the allocator's free memory to the system; glibc can.

    A thread that allocates during the call may wait, some tenth of a second for each GB of
    fragmented free memory.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _left_of_limits() -> Iterator[tuple[str, int, int]]:
    for name, has in ("RLIMIT_AS", "vms"), ("RLIMIT_DATA", "data"):
        most = resource.getrlimit(getattr(resource, name))[0]
        if most != resource.RLIM_INFINITY:
            used = getattr(_process(os.getpid()).memory_info(), has, 0)
            yield f"the process's {name}", max(0, most - used), most


def _left_in_groups() -> Iterator[tuple[str, int, int]]:
    for version, folder in _groups():
        limit, used, caches = _OF_VERSION[version]
        with contextlib.suppress(OSError, ValueError):  # "max", or there is no such file
            most = int((folder / limit).read_text())
            left = most - int((folder / used).read_text()) + _cached(folder, caches)
            yield f"the cgroup {folder}", max(0, left), most


def _cached(folder: Path, names: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError, ValueError):
        facts = (line.partition(" ") for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(value) for fact, _, value in facts if fact in names)
    return 0


def _groups() -> Iterator[tuple[int, Path]]:
    """Yield the cgroups of this process, each with the groups around it."""
    with contextlib.suppress(OSError, ValueError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names == "":
                version, root = 2, _GROUPS
            elif "memory" in names.split(","):
                version, root = 1, _GROUPS / "memory"
            else:
                continue
            inner = root / path.lstrip("/")
            yield from ((version, place) for place in (inner, *inner.parents) if root <= place)
