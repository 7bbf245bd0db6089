"""Which of a job's processes this one is."""

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
"""The source of a rank that nobody has named yet."""
ROLE_VARIABLE = "DYNPROF_ROLE"
GROUP, SCRIPT = "torch.distributed", "init(rank=...)"


@dataclass(frozen=True)
class Rank:
    """A process's place in its job.

    Attributes:
        number: Its rank, from 0.
        world_size: How many ranks there are.
        source: What said so.
    """

    number: int
    world_size: int
    source: str

    def refreshed(self) -> Rank:
        """Return the rank as it is known now; a process group may have come up meanwhile, or anew.

        What it says goes before what a launcher said, but not before the script. Where it is gone,
        what it said last stands.
        """
        if self.source == SCRIPT:
            return self
        found = find_rank()
        return found if found.source == GROUP or self.source == UNKNOWN else self


def role_of(argument: str | None) -> str:
    """Return the role that an argument, or without one the variable, names; empty for none.

    Raises:
        ValueError: It cannot be part of a file name.
    """
    variable = os.environ.get(ROLE_VARIABLE, "")
    source, role = (ROLE_VARIABLE, variable) if argument is None else ("role", argument)
    if isinstance(role, str) and re.fullmatch(f"({ROLE})?", role):
        return role
    raise ValueError(f"{source}={role!r} is no role; use up to 32 letters, digits and hyphens")


_MAX_DIGITS = 8
"""No machine has more processes than numbers of so many."""


def find_rank() -> Rank:
    """Ask an initialised process group, then what launchers set in the environment; else 0 of 1."""
    with contextlib.suppress(RuntimeError, ValueError):  # it is just destroyed
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
    """Return how many of the job's processes the launcher says that this machine has, else 1."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(here) if here.isdecimal() and len(here) <= _MAX_DIGITS else 1)


def why_no_rank() -> str | None:
    """Say why this process is a helper of a training process and none itself; None if it may be.

    A child that multiprocessing spawns imports the script first: that is no training yet (an
    empty reason: nobody needs to hear of it). The workers of a DataLoader or a pool are daemonic.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):  # multiprocessing's own mark for this
        return ""
    if process.daemon:
        return f"{process.name} is a daemonic child, as a DataLoader's workers are"
    return None


_inherited: weakref.ref[Any] | None = None
"""The default group of the process that this one was forked from."""


def own_distributed() -> Any:
    """Return ``torch.distributed`` where it has a default group of this process's; else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    # It may be being imported, initialised or destroyed.
    with contextlib.suppress(AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        if distributed and distributed.is_available() and distributed.is_initialized():
            is_own = _inherited is None or distributed.group.WORLD is not _inherited()
            return distributed if is_own else None
    return None


def ignore_inherited_group() -> None:
    """Take no group that is there now for this process's own; called in a child just forked."""
    global _inherited
    if distributed := own_distributed():
        _inherited = weakref.ref(distributed.group.WORLD)
