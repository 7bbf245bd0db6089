"""The rank of this process in its job, or why dynprof cannot watch the process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import sys
import weakref
from dataclasses import dataclass
from typing import Any

from dynprof.runtime.layout import ROLE

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
UNKNOWN = "no launcher"
"""Source of a rank that nothing has named yet."""
ROLE_VARIABLE = "DYNPROF_ROLE"
GROUP, SCRIPT = "torch.distributed", "init(rank=...)"
_MAX_DIGITS = 8
"""Most digits that a number of processes on a machine can have."""
_inherited: weakref.ref[Any] | None = None
"""The default group of the process that this one was forked from."""
_GEVENT = ("threading", "queue", "select", "subprocess")
_LEAVES = "patch_all(thread=False, queue=False, select=False, subprocess=False)"
_EVENTLET = ("thread", "select")


@dataclass(frozen=True)
class Rank:
    """A process's place in its job.

    Attributes:
        number: Its rank, from 0.
        world_size: Number of ranks.
        source: What named the rank.
    """

    number: int
    world_size: int
    source: str

    def refreshed(self) -> Rank:
        """Return the current rank: a process group may have been initialised since, or replaced.

        A process group overrides a launcher, but not the script. After it is destroyed, its last
        answer stays valid.
        """
        if self.source == SCRIPT:
            return self
        found = find_rank()
        return found if found.source == GROUP or self.source == UNKNOWN else self


def role_of(argument: str | None) -> str:
    """Return the role that an argument or else the variable names; empty for none.

    Raises:
        ValueError: It cannot be part of a file name.
    """
    variable = os.environ.get(ROLE_VARIABLE, "")
    source, role = (ROLE_VARIABLE, variable) if argument is None else ("role", argument)
    if isinstance(role, str) and re.fullmatch(f"({ROLE})?", role):
        return role
    raise ValueError(f"{source}={role!r} is no role; use up to 32 letters, digits and hyphens")


def find_rank() -> Rank:
    """Return the rank from an initialised process group, else from a launcher; else 0 of 1."""
    with contextlib.suppress(RuntimeError, ValueError):  # it was destroyed just now
        if distributed := own_distributed():
            return Rank(distributed.get_rank(), distributed.get_world_size(), GROUP)
    for name, size_name in _VARIABLES:
        text = os.environ.get(name, "")
        if text.isdecimal():
            size_text = os.environ.get(size_name, "")
            size = int(size_text) if size_text.isdecimal() else int(text) + 1
            return Rank(int(text), size, name)
    return Rank(0, 1, UNKNOWN)


def ranks_here() -> int:
    """Return the launcher's number of the job's processes on this machine, else 1."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(here) if here.isdecimal() and len(here) <= _MAX_DIGITS else 1)


def why_no_rank() -> str | None:
    """Return why this process only helps a training process; None if it may be a rank.

    A child that multiprocessing spawns imports the script first, which is not training yet. Then
    the reason is empty, because no message is needed. Workers of a DataLoader or pool are daemonic.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):  # multiprocessing's own mark for this
        return ""
    if process.daemon:
        return f"{process.name} is a daemonic child, as a DataLoader's workers are"
    return None


def own_distributed() -> Any:
    """Return ``torch.distributed`` if this process has a default group of its own; else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    # Another thread may be importing, initialising or destroying it.
    with contextlib.suppress(AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        if distributed and distributed.is_available() and distributed.is_initialized():
            is_own = _inherited is None or distributed.group.WORLD is not _inherited()
            return distributed if is_own else None
    return None


def ignore_inherited_group() -> None:
    """Ignore the parent's process group from now on; called in a child just forked."""
    global _inherited
    if distributed := own_distributed():
        _inherited = weakref.ref(distributed.group.WORLD)


def why_unsupported(rank: int | None = None) -> str | None:
    """Return why this process cannot or must not be watched; None if it can.

    Args:
        rank: The rank that the caller names; without it, a worker of a loader is no rank.
    """
    if text := why_no_threads():
        return text
    reason = why_no_rank() if rank is None else None
    return f"{reason}; pass rank= if it trains" if reason else reason


def why_no_threads() -> str:
    """Return what has replaced threads, and what to do; empty if nothing has."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent and any(map(gevent.is_module_patched, _GEVENT)):
        return _words("gevent", f"gevent.monkey.{_LEAVES}")
    if eventlet and any(map(eventlet.is_monkey_patched, _EVENTLET)):
        return _words("eventlet", "eventlet.monkey_patch(thread=False, select=False)")
    return ""


def _words(library: str, call: str) -> str:
    return f"{library} has replaced the threads that dynprof works with; {call} leaves them alone"
