"""The job's process group, and dynprof's own connections to its key-value store."""

from __future__ import annotations

import contextlib
import datetime
import encodings.idna  # noqa: F401 - else socket imports it during training
import functools
import os
import resource
import socket
import sys
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynprof.ranks.store import unwrapped
from dynprof.runtime.plural import counted
from dynprof.runtime.rank import own_distributed

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.windows.process_context import ProcessContext

CONNECTIONS = 2  # For each rank: one that waits, one for calls.
FILES_PER_RANK, OTHER_FILES = 2 + CONNECTIONS, 200
"""Open files where the store is: the job's connection, dynprof's and a spare one for each rank."""
TIMEOUT = datetime.timedelta(minutes=20)
"""With a shorter timeout torch writes to stderr; :class:`TimedStore` notices silence earlier."""
PROBE_S = 2.0  # A store that accepts no connection in this time is away.
PROBE_CLOSE_S = 0.05  # A proxy whose store is away accepts a connection and closes it.
SWITCH_VARIABLE = "DYNPROF_AGREE"
"""If 0, each rank serves its own requests."""
LAUNCHER_STORE_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun where its own store serves the ranks; that store outlives them."""


class StoreLostError(Exception):
    """The job's store does not answer."""


class CannotServeError(Exception):
    """The job's store cannot serve, now or later."""


@dataclass(frozen=True)
class JobGroup:
    """Ranks that share a key-value store, usually a process group."""

    rank: int  # of this process
    world_size: int
    find_store: Callable[[], Any]  # returns the store; None once the job has destroyed it
    role: str = ""  # of its ranks; a prefix of their keys, because each role agrees by itself

    @property
    def store(self) -> Any:
        """The store; each process group has another one."""
        return self.find_store()

    @property
    def is_gone(self) -> bool:
        """Whether the store ended with the process group; a launcher's store outlives it."""
        return self.store is None and os.environ.get(LAUNCHER_STORE_VARIABLE) != "True"

    def collectives(self) -> int | None:
        """Return how many collectives this process has begun; None if torch does not know."""
        distributed: Any = sys.modules.get("torch.distributed")
        # Another thread may be destroying it.
        with contextlib.suppress(AttributeError, RuntimeError, ValueError):
            group = distributed.distributed_c10d._get_default_group()
            if (group.rank(), group.size()) == (self.rank, self.world_size):
                return int(group._get_sequence_number_for_group())
        return None

    def connect(self) -> list[TimedStore]:
        """Open dynprof's own connections, so that no call waits for another's.

        Raises:
            StoreLostError: The store cannot be reached.
            CannotServeError: The store is gone, or its type is not supported.
        """
        of_job = self.store
        if of_job is None:
            raise CannotServeError("the job has left its process group")
        clone = getattr(of_job, "clone", None)
        extended = getattr(of_job, "has_extended_api", None)
        if clone is None or extended is None or not extended():
            kind = type(unwrapped(of_job)).__name__
            raise CannotServeError(f"the job's {kind} supports no second connection or no append()")
        if too_few := self._open_files_lacking():
            raise CannotServeError(too_few)
        _probe(unwrapped(of_job))
        try:
            stores = [self._of_role(clone()) for _ in range(CONNECTIONS)]
            for store in stores:
                store.set_timeout(TIMEOUT)
        except RuntimeError as error:
            raise StoreLostError(str(error).splitlines()[0]) from error
        return [TimedStore(store) for store in stores]

    def _of_role(self, store: Any) -> Any:
        if not self.role:
            return store
        return sys.modules["torch.distributed"].PrefixStore(f"dynprof/{self.role}", store)

    def _open_files_lacking(self) -> str:
        """Return why the store may run out of open files; empty if it will not."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        needed = FILES_PER_RANK * self.world_size + OTHER_FILES
        if allowed == resource.RLIM_INFINITY or allowed >= needed:
            return ""
        ranks = counted(self.world_size, "rank")
        text = f"{allowed} files may be open here, and a store of {ranks} may need {needed:,}"
        return f"{text}; raise the limit with ulimit -n"


def _probe(store: Any) -> None:
    """Check that a store accepts connections; torch's own attempt writes pages to stderr."""
    host, port = getattr(store, "host", ""), getattr(store, "port", 0)
    if not (host and port):
        return
    try:
        with socket.create_connection((host, port), timeout=PROBE_S) as probe:
            probe.settimeout(PROBE_CLOSE_S)
            with contextlib.suppress(TimeoutError):
                probe.recv(1)  # a store never sends first; a proxy closes at once
                raise ConnectionResetError("it closes connections at once")
    except OSError as error:
        raise StoreLostError(f"{host}:{port}: {error}") from error


class TimedStore:
    """A connection that lets other threads see how long its current call has been waiting."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._since_s: float | None = None
        self.is_given_up = False

    @property
    def unanswered_s(self) -> float:
        """Seconds since the current call began; 0 while none is running."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return functools.partial(self._call, method)

    def _call(self, method: str, *given: Any) -> Any:
        if self.is_given_up:
            raise StoreLostError("its connection was given up")
        self._since_s = time.monotonic()
        try:
            found = getattr(self._store, method)(*given)
        except (RuntimeError, ValueError) as error:
            self.is_given_up = True
            raise StoreLostError(str(error).splitlines()[0]) from error
        finally:
            self._since_s = None
        if self.is_given_up:
            raise StoreLostError("it answered too late")
        return found


def group_to_agree_in(process: ProcessContext) -> JobGroup | None:
    """Return the group of this process; None where the environment turns agreement off."""
    store, rank, role = process.store, process.rank, process.layout.role
    if os.environ.get(SWITCH_VARIABLE) == "0":
        return None
    if store is None:
        return job_group(role)
    size = rank.world_size
    return JobGroup(rank.number, size, lambda: store, role) if size > 1 else None


def job_group(role: str = "") -> JobGroup | None:
    """Return the default group of torch.distributed; None where it has no second rank.

    It holds no reference to the store. The store's server would outlive the group, and serve the
    job's next group with old addresses. A forked child does not belong to its parent's group.
    """
    # Another thread may be destroying it.
    with contextlib.suppress(AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        if distributed := own_distributed():
            store = distributed.distributed_c10d._get_default_store()
            rank, size = distributed.get_rank(), distributed.get_world_size()
            return JobGroup(rank, size, weakref.ref(store), role) if size > 1 else None
    return None


_before_destroy: tuple[int, Callable[[], object]] | None = None
"""The process that registered an action, and the action; a forked child has another group."""


def before_destroy(action: Callable[[], object]) -> None:
    """Run an action before the script destroys its process group.

    The store's server often ends with the group. For a rank that still waits in it, torch writes a
    page of C++ to stderr. This wraps, once, the function with which torch releases the default
    group: a script may have imported ``destroy_process_group`` by name.
    """
    global _before_destroy
    _before_destroy = os.getpid(), action
    distributed: Any = sys.modules.get("torch.distributed")
    inner: Any = getattr(distributed, "distributed_c10d", None)
    plain = getattr(inner, "_update_default_pg", None)
    if plain is None or hasattr(plain, "_dynprof"):
        return

    @functools.wraps(plain)
    def update_default_pg(group: Any) -> Any:
        pid, act = _before_destroy or (0, bool)
        if pid == os.getpid() and group is None:
            act()
        return plain(group)

    update_default_pg._dynprof = True  # type: ignore[attr-defined]
    inner._update_default_pg = update_default_pg
