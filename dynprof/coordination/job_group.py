"""The job's own process group, and a connection of dynprof's to its key-value store."""

from __future__ import annotations

import contextlib
import datetime
import os
import resource
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dynprof.coordination.job_store import beneath
from dynprof.plural import counted
from dynprof.process.process_group import own_distributed
from dynprof.process.rank import ranks_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.coordination.job_store import Store
    from dynprof.process.rank import Rank

FILES_A_RANK, FILES_BESIDE = 3, 200
"""Open where the store is: a connection of the job's, dynprof's, and one to spare."""
TIMEOUT = datetime.timedelta(seconds=5)
"""What is asked of the store is there, or the store is not."""
SWITCH = "DYNPROF_AGREE"
"""Set to 0, each rank serves what it reads itself."""
LAUNCHERS_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun where the ranks use its own store."""
COUNTED_APART = (2, 6)
"""From that torch on NCCL's count of collectives has no messages in it, whichever way they go."""


class Begun(NamedTuple):
    """What a process group has begun on this rank.

    Attributes:
        number: How many collectives.
        is_exact: Whether that is all; else what this rank sent and received is among them.
    """

    number: int
    is_exact: bool


@dataclass(frozen=True)
class JobGroup:
    """Several ranks that share a key-value store: a process group, mostly.

    Attributes:
        rank: This process's.
        world_size: How many there are.
        find_store: Returns the store; None where the job has let go of it.
    """

    rank: int
    world_size: int
    find_store: Callable[[], Any]

    @property
    def store(self) -> Any:
        """The store, which tells one group from the next."""
        return self.find_store()

    @property
    def is_gone(self) -> bool:
        """Whether the job has left it and its store with it; that of a launcher lives on."""
        return self.store is None and os.environ.get(LAUNCHERS_STORE) != "True"

    @property
    def machines(self) -> float:
        """On how many they are, as far as the launcher says; else one each."""
        return self.world_size / ranks_here()

    def collectives(self) -> Begun | None:
        """Return how many this process has begun; None where torch does not say."""
        distributed: Any = sys.modules.get("torch.distributed")
        # It may be being destroyed, on another thread.
        with contextlib.suppress(AttributeError, RuntimeError, ValueError):
            group = distributed.distributed_c10d._get_default_group()
            if (group.rank(), group.size()) == (self.rank, self.world_size):
                number = int(group._get_sequence_number_for_group())
                return Begun(number, group.name() == "nccl" and _torch() >= COUNTED_APART)
        return None

    def connect(self) -> Store:
        """Return a connection of its own: one that waits holds nobody else up.

        Raises:
            RuntimeError: The store cannot be reached, or is of a kind that cannot serve.
        """
        of_job = self.store
        if of_job is None:
            raise RuntimeError("the job has left its process group")
        clone = getattr(of_job, "clone", None)
        extended = getattr(of_job, "has_extended_api", None)
        if clone is None or extended is None or not extended():
            kind = type(beneath(of_job)).__name__
            raise RuntimeError(f"the job's {kind} knows no second connection, or no append()")
        if too_few := self._open_files_lacking():
            raise RuntimeError(too_few)
        store = clone()
        store.set_timeout(TIMEOUT)
        return cast("Store", store)

    def _open_files_lacking(self) -> str:
        """Say why one more connection for each rank may be one too many where the store is."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        needed = FILES_A_RANK * self.world_size + FILES_BESIDE
        if allowed == resource.RLIM_INFINITY or allowed >= needed:
            return ""
        ranks = counted(self.world_size, "rank")
        text = f"{allowed} files may be open here, and a store of {ranks} may need {needed:,}"
        return f"{text}; allow for that with ulimit -n"


def _torch() -> tuple[int, ...]:
    """Return the version of torch, its first two numbers."""
    return tuple(map(int, str(sys.modules["torch"].__version__).split(".")[:2]))


def group_around(store: object, rank: Rank) -> JobGroup | None:
    """Return the ranks that share a store of the script's; None where there is no second one."""
    return JobGroup(rank.number, rank.world_size, lambda: store) if rank.world_size > 1 else None


def job_group() -> JobGroup | None:
    """Return the default group of torch.distributed; None where it has no second rank.

    None as well in a child that was forked and has made none itself: its parent's is not its own.

    Its store is not held: the server in it would outlive the group, and be that of the job's next
    one, to whose ranks it gives the addresses of those before.
    """
    # It may just be destroyed.
    with contextlib.suppress(AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        if distributed := own_distributed():
            store = distributed.distributed_c10d._get_default_store()
            rank, size = distributed.get_rank(), distributed.get_world_size()
            return JobGroup(rank, size, weakref.ref(store)) if size > 1 else None
    return None


def group_to_agree_in(rank: Rank, store: object) -> JobGroup | None:
    """Return the group of this process, unless it is told not to agree.

    Args:
        rank: Which of the job's processes this is.
        store: That of all of them, where the script gave one.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    return job_group() if store is None else group_around(store, rank)
