"""The ranks of the benchmark of agreements: threads with connections of their own, always free."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dynprof.coordination.follower import Follower
from dynprof.coordination.job_store import JOINED, next_place
from dynprof.coordination.listener import Listener
from dynprof.coordination.messages import Farewell, Joined, Mark, Profiler, Rejoin, Reply
from dynprof.coordination.participant import answer
from dynprof.coordination.relay import COLLECT_S, Relay
from dynprof.coordination.wire import message_of, to_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dynprof.coordination.job_store import Store
    from dynprof.coordination.messages import Cancellation, Opening, Proposal, Withdrawal
    from dynprof.coordination.pace import Pace

RANKS_A_MACHINE = 8
STEP_S = 0.01
TORCH = Profiler("torch", ("CPU", "CUDA"))


class Walker:
    """A rank that is always free, and walks on.

    Args:
        rank: Its number.
        a_machine: How many share one.
    """

    def __init__(self, rank: int, a_machine: int = RANKS_A_MACHINE) -> None:
        self.rank, self.opened, self.late = rank, 0, 0
        self._host = f"node-{rank // a_machine:05}"

    def _reply(self) -> Reply:
        step = int(time.monotonic() / STEP_S)
        reply = Reply(self.rank, "", True, step, STEP_S, 0.0, time.monotonic(), self._host, "idle")
        return replace(reply, mark=Mark(step, 3 * step, 3, is_exact=True))

    def consider(self, proposal: Proposal) -> Reply:
        """Take part."""
        del proposal
        reply = self._reply()
        return replace(reply, would=TORCH, usable=(TORCH,))

    def where(self, number: int) -> Reply:
        """Say where it is."""
        del number
        return self._reply()

    def wait_no_more_with(self, superseded: Collection[tuple[int, int]]) -> None:
        """Nothing of it."""

    def open_at(self, opening: Opening) -> Reply:
        """Note whether it has been told in time."""
        reply = self._reply()
        self.opened += 1
        self.late += opening.step <= reply.step
        return reply

    def withdraw(self, withdrawal: Withdrawal) -> Reply:
        """Nothing of it."""
        del withdrawal
        return self._reply()

    def cancel(self, cancellation: Cancellation) -> Reply:
        """Nothing of it."""
        del cancellation
        return self._reply()

    def parting(self) -> dict[int, Reply]:
        """Nothing of it."""
        return {}

    def left_alone(self, why: str) -> None:
        """Nothing of it."""


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, store: Any) -> None:
        self._store, self.calls = store, 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self._store, name)


class Machine(Relay):
    """One thread that replies for all ranks of a machine, each as late as it is waited for.

    Args:
        store: The job's, on a connection of this thread.
        pace: Of looks into it.
        log: What tells what this leader says from that of all others.
        folder: Where this machine has its memory.
        others: Its other ranks.
    """

    def __init__(
        self, store: Store, pace: Pace, log: str, folder: Path, others: Sequence[Walker]
    ) -> None:
        super().__init__(store, pace, log, folder)
        self._others = others
        self._to_come: tuple[float, int, list[str]] | None = None
        joined = [Joined(other.rank, next_place(store)) for other in others]
        store.append(JOINED, "".join(f"{to_text(one)}\n" for one in joined))

    def said(self, place: int) -> bytes | None:
        """Return the message of a place, and have the others reply to it."""
        raw = super().said(place)
        message = message_of(raw) if raw else None
        if message and not isinstance(message, Rejoin | Farewell):
            texts = [to_text(answer(other, message)) for other in self._others]
            self._to_come = time.monotonic() + COLLECT_S, place, texts
        return raw

    def _collect(self) -> None:
        if self._to_come and time.monotonic() >= self._to_come[0]:
            _, place, texts = self._to_come
            self._to_come = None
            for text in texts:
                self._bundle.put(place, text)


class Share(NamedTuple):
    """What one process has of a job.

    Attributes:
        port: Of the store.
        ranks: Each a thread.
        like: As how many ranks they are to look.
        memory: Where machines have theirs.
        a_machine: How many ranks share one.
        is_machine: Whether each replies for its machine, of which it is the first.
    """

    port: int
    ranks: range
    like: int
    memory: str
    a_machine: int
    is_machine: bool


def follow(share: Share, told: Any) -> None:
    """Be some of the ranks, until the leader says farewell; tell how often each asked the store."""
    from torch.distributed import TCPStore

    threading.stack_size(256 * 1024)
    walkers = [Walker(rank, share.a_machine) for rank in share.ranks]
    stores: list[Counting] = []
    ended = threading.Event()

    def be(walker: Walker) -> None:
        store = Counting(TCPStore("127.0.0.1", share.port, None, False))
        stores.append(store)
        folder = Path(share.memory, str(walker.rank // share.a_machine))
        folder.mkdir(exist_ok=True)
        after = range(walker.rank + 1, walker.rank + share.a_machine)
        others = [Walker(rank, share.a_machine) for rank in after if share.is_machine]

        def relay(store: Store, pace: Pace, name: str) -> Relay:
            if share.is_machine:
                return Machine(store, pace, name, folder, others)
            return Relay(store, pace, name, folder)

        machines = share.like / RANKS_A_MACHINE
        listener = Listener(store, walker.rank, share.like, machines, ended.wait, relay)
        Follower(listener, walker, ended.is_set).follow()

    threads = [threading.Thread(target=be, args=(walker,), daemon=True) for walker in walkers]
    for thread in threads:
        thread.start()
    told.recv()
    before = sum(store.calls for store in stores)
    told.recv()
    calls = sum(store.calls for store in stores) - before
    told.send((calls, sum(w.late for w in walkers), sum(w.opened for w in walkers)))
    ended.set()
    for thread in threads:
        thread.join()
