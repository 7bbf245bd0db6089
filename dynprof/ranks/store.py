"""The job's key-value store: dynprof's own connections to it, and the messages in it.

The leader's messages form one log: place ``n`` of it is the key ``say/n``. Each rank blocks in
``wait`` for the place after the last that it has read. Replies to a place are appended to
``re/n`` and counted in ``count/n``. The last reply sets ``notice``, for which the leader waits.
Ranks append their own news to ``news``, and set ``notice`` too.
"""

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
NO_MESSAGE = "~"  # An empty message that ends a wait.
KEPT = 64  # Messages that stay in the store; a rank that is farther behind reconnects.
DIGITS = 15
"""Most digits of a place; longer text is another program's."""
FOREVER = datetime.timedelta(days=20)
"""How long a rank waits for a message. After a timeout torch writes two warnings to the job's
stderr, and TCP itself survives a cut of some minutes."""
_NOTHING = "?"  # A value that dynprof never stores.

Store = Any
"""A ``torch.distributed.Store`` with ``set``, ``add``, ``append``, ``compare_set``, ``delete_key``
and ``wait``: a rank's own connection."""


class StoreLostError(Exception):
    """The job's store does not answer."""


class CannotServeError(Exception):
    """The job's store cannot serve, now or later."""


@dataclass(frozen=True)
class JobGroup:
    """Ranks that share a key-value store, usually a process group."""

    rank: int  # of this process
    world_size: int
    store: Callable[[], Any]  # returns the store; None once the job has destroyed it
    role: str = ""  # of its ranks; a prefix of their keys, because each role agrees by itself

    @property
    def is_gone(self) -> bool:
        """Whether the store ended with the process group; a launcher's store outlives it."""
        return self.store() is None and os.environ.get(LAUNCHER_STORE_VARIABLE) != "True"

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
        of_job = self.store()
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
            stores = [clone() for _ in range(CONNECTIONS)]
            for store in stores:
                store.set_timeout(TIMEOUT)
        except RuntimeError as error:
            raise StoreLostError(str(error).splitlines()[0]) from error
        if self.role:
            prefixed = sys.modules["torch.distributed"].PrefixStore
            stores = [prefixed(f"dynprof/{self.role}", store) for store in stores]
        return [TimedStore(store) for store in stores]

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


def unwrapped(store: Any) -> Any:
    """Return the store below the wrappers that only prefix keys, as a process group adds them."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return store


def group_to_agree_in(process: ProcessContext) -> JobGroup | None:
    """Return the ranks of this process's job that share a store; None where it is alone.

    Without a store of the script, they are the default group of torch.distributed. The group holds
    no reference to its store. The store's server would outlive the group, and serve the job's next
    group with old addresses. A forked child does not belong to its parent's group.
    """
    store, rank, role = process.store, process.rank, process.layout.role
    found = None
    if os.environ.get(SWITCH_VARIABLE) == "0":
        return None
    if store is not None:
        found = JobGroup(rank.number, rank.world_size, lambda: store, role)
    # Another thread may be destroying it.
    elif distributed := own_distributed():
        with contextlib.suppress(AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            of_job = weakref.ref(distributed.distributed_c10d._get_default_store())
            found = JobGroup(distributed.get_rank(), distributed.get_world_size(), of_job, role)
    return found if found and found.world_size > 1 else None


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


class Keys:
    """The keys."""

    leader, next = "dynprof/leader", "dynprof/next"
    news, notice = "dynprof/news", "dynprof/notice"
    message, replies, count = (f"dynprof/{of}/{{}}".format for of in ("say", "re", "count"))


def value_of(store: Store, key: str) -> bytes | None:
    """Return a value; None where there is none.

    ``compare_set`` returns the expected value for a missing key; ``get`` would wait for the key.
    """
    found = bytes(store.compare_set(key, _NOTHING, _NOTHING))
    return None if found == _NOTHING.encode() else found


def next_place(store: Store) -> int:
    """Return the place of the next message; 0 if there was none yet."""
    text = (value_of(store, Keys.next) or b"")[: DIGITS + 1]
    return int(text) if text.isdigit() and len(text) <= DIGITS else 0


class LogWriter:
    """The leader's side of the log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._place = next_place(store)
        self._asked: list[int] = []  # the newest two places that have replies

    def begin(self, text: str) -> int:
        """Send the first message; it stays in the store for ranks that join late."""
        self._store.set(Keys.leader, text)
        return self.send(text)

    def send(self, text: str, *, has_replies: bool = False) -> int:
        """Append a message, and delete an old one with its replies; return the new one's place."""
        while True:
            place, self._place = self._place, self._place + 1
            is_sent = self._store.compare_set(Keys.message(place), "", text) == text.encode()
            self._delete(place - KEPT)
            if is_sent:  # else an empty message is there
                break
        self._store.set(Keys.next, str(self._place))
        if has_replies:
            self._asked = [*self._asked, place][-2:]
        return place

    def _delete(self, place: int) -> None:
        for key in (Keys.message, Keys.replies, Keys.count):
            self._store.delete_key(key(place))

    def take(self) -> bytes:
        """Return new replies and news as lines, replies first."""
        keys = [*map(Keys.replies, self._asked), Keys.news]
        return b"".join(map(self._take, keys))

    def _take(self, key: str) -> bytes:
        """Return a value and empty it, with what ranks add in the meantime."""
        while True:
            found = value_of(self._store, key)
            if not found:
                return b""
            try:
                text = found.decode()
            except UnicodeDecodeError:  # another program wrote into it
                self._store.delete_key(key)
                return found
            if bytes(self._store.compare_set(key, text, "")) == b"":
                return found

    def resign(self) -> None:
        """Remove the leader's name, and the replies and news; ranks may still read messages."""
        replies = [of(place) for place in self._asked for of in (Keys.replies, Keys.count)]
        for key in (Keys.leader, Keys.news, *replies):
            self._store.delete_key(key)


class LogReader:
    """The other ranks' side of the log; :meth:`wait` blocks, so it has its own thread."""

    def __init__(self, calls: Store, waits: Store) -> None:
        self._calls, self._waits = calls, waits
        self.place = next_place(calls)

    def leader(self) -> bytes:
        """Return the first message of the newest leader; empty if there is none."""
        return value_of(self._calls, Keys.leader) or b""

    def wait(self) -> tuple[int, bytes | None]:
        """Block until there is a message; return its place and the message.

        The message is None if it was deleted: this rank was away, and continues with the newest.
        """
        self._waits.wait([Keys.message(self.place)], FOREVER)
        place, found = self.place, value_of(self._waits, Keys.message(self.place))
        newest = place + 1 if found is not None else next_place(self._waits)
        self.place = max(place + 1, newest)
        return place, found

    def end_wait(self, place: int) -> None:
        """End the wait for a place."""
        self._calls.compare_set(Keys.message(place), "", NO_MESSAGE)

    def reply(self, place: int, text: str, expect: int) -> None:
        """Reply to a message; the last reply that the leader expects wakes it."""
        self._calls.append(Keys.replies(place), text + "\n")
        if self._calls.add(Keys.count(place), 1) >= expect:
            self._calls.set(Keys.notice, "1")

    def send_news(self, text: str) -> None:
        """Send the leader news that it did not ask for."""
        self._calls.append(Keys.news, text + "\n")
        self._calls.set(Keys.notice, "1")


def wait_for_notice(store: Store) -> None:
    """Block until a rank wakes the leader."""
    store.wait([Keys.notice], FOREVER)
    store.delete_key(Keys.notice)
