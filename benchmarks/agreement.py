"""How long ranks take to agree on a step: the real protocol over a real TCPStore on loopback.

Each rank but the first is a thread with a connection of its own, of a few processes; it walks on
by itself, a step every ten milliseconds, and eight are taken for a machine. Measured from the
proposal until all had been told, and the processor time of the process that has the leader and the
store. What a round trip of the store takes is measured beside it, on the same connection.

In larger jobs than can be tried here one rank of each machine talks to the store for all there, the
less often the more machines there are; so it does in the jobs of the last rows. What larger ones
take is foretold by these: as long as a few machines take at that pace, and what each rank more
costs the leader and the store. The ranks share two cores here: what they do among themselves takes
longer than on machines of their own, so that nothing is told by it.

    python -m benchmarks.agreement [RANKS ...] [--plot FILE]
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.agreement_plot import plot
from benchmarks.tables import print_table
from dynprof.config import RankSet
from dynprof.coordination.follower import Follower
from dynprof.coordination.leader import Leader, Terms
from dynprof.coordination.listener import Listener
from dynprof.coordination.messages import Mark, Profiler, Proposal, Reply
from dynprof.coordination.relay import Relay
from dynprof.coordination.speaker import Speaker

if TYPE_CHECKING:
    from dynprof.coordination.messages import Cancellation, Opening, Withdrawal

ROUNDS, PROCESSES = 7, 4
RANKS_A_MACHINE = 8
FEW, MORE, FORETOLD = 33, 250, (10_000,)
"""Ranks of a job that shows the pace of larger ones, of one that shows the work, and of these."""
SHM = Path("/dev/shm")  # noqa: S108 - a folder of its own below it
STEP_S = 0.01
TORCH = Profiler("torch", ("CPU", "CUDA"))
CONFIG = '{"active": 3, "record_shapes": true, "experimental_config": {"export_type": ["text"]}}'


class Walker:
    """A rank that is always free, and walks on.

    Args:
        rank: Its number.
    """

    def __init__(self, rank: int) -> None:
        self.rank, self.opened, self.late = rank, 0, 0

    def _reply(self) -> Reply:
        step = int(time.monotonic() / STEP_S)
        host = f"node-{self.rank // 8:05}"
        reply = Reply(self.rank, "", True, step, STEP_S, 0.0, time.monotonic(), host, "idle")
        return replace(reply, mark=Mark(step, 3 * step, 3))

    def consider(self, proposal: Proposal) -> Reply:
        """Take part."""
        del proposal
        reply = self._reply()
        return replace(reply, would=TORCH, usable=(TORCH,))

    def where(self, number: int) -> Reply:
        """Say where it is."""
        del number
        return self._reply()

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


def follow(port: int, ranks: range, counted: int, machines: float, memory: str, told: Any) -> None:
    """Be some of the ranks, until the leader says farewell; tell how often each asked the store."""
    from torch.distributed import TCPStore

    threading.stack_size(256 * 1024)
    walkers = [Walker(rank) for rank in ranks]
    stores: list[Counting] = []
    ended = threading.Event()

    def be(walker: Walker) -> None:
        store = Counting(TCPStore("127.0.0.1", port, None, False))
        stores.append(store)
        machine = Path(memory, str(walker.rank // RANKS_A_MACHINE))
        machine.mkdir(exist_ok=True)
        listener = Listener(
            store,
            walker.rank,
            counted,
            machines,
            ended.wait,
            lambda store, pace, name: Relay(store, pace, name, machine),
        )
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


def measure(world_size: int, shm: str, like: int = 0) -> dict[str, float]:
    """Return what an agreement of so many ranks takes, or of so many of a job like a larger one."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, None, True)
    context = multiprocessing.get_context("spawn")
    others = list(range(1, world_size))
    shares = [others[place::PROCESSES] for place in range(min(PROCESSES, len(others)))]
    pipes, running = [], []
    for share in shares:
        here, there = context.Pipe()
        counted = like or world_size
        given = (server.port, share, counted, counted / RANKS_A_MACHINE, shm, there)
        process = context.Process(target=follow, args=given)
        process.start()
        pipes.append(here)
        running.append(process)
    store = TCPStore("127.0.0.1", server.port, None, False)
    speaker = Speaker(store)
    leader = Leader(speaker, Walker(0), world_size)
    speaker.lead("the benchmark")
    while len(speaker.listeners()) < world_size - 1:
        time.sleep(0.05)
    memory = psutil.Process().memory_info().rss
    for pipe in pipes:
        pipe.send("begin")
    took, trips, worked = [], [], []
    for number in range(1, ROUNDS + 1):
        time.sleep(1.0)  # as long as nothing happens they look seldom
        before_s = time.process_time()
        made = leader.agree(Proposal(number, CONFIG, 0.0, 30.0), Terms(RankSet.parse("all")))
        worked.append(time.process_time() - before_s)
        assert len(made.ranks) == world_size, made
        took.append(made.took_s)
        began_s = time.perf_counter()
        store.set("trip", "x")
        store.wait(["trip"])
        trips.append(time.perf_counter() - began_s)
    for pipe in pipes:
        pipe.send("end")
    found = [pipe.recv() for pipe in pipes]
    memory = psutil.Process().memory_info().rss - memory
    for process in running:
        process.join()
    opened = sum(opened for *_, opened in found)
    return {
        "ranks": world_size,
        "like": like,
        "seconds": statistics.median(took),
        "worst": max(took),
        "worked_s": statistics.median(worked),
        "trip_s": statistics.median(trips),
        "calls": sum(calls for calls, *_ in found) / max(1, len(others)) / ROUNDS,
        "late": sum(late for _, late, _ in found) / max(1, opened),
        "leader_mb": memory / 1e6,
    }


def foretold(alike: list[dict[str, float]]) -> float:
    """Return the seconds that a job would take, by what some of its ranks have taken.

    The ranks have machines of their own there: what grows with them is the work of the leader and
    the store, in one process here, a line through the two. How long it takes until the slowest
    machine has looked is the worst that a few machines have shown.
    """
    few, more = alike
    work_s = (more["worked_s"] - few["worked_s"]) / (more["ranks"] - few["ranks"])
    return few["worst"] + work_s * few["like"]


def main(*given: str) -> None:
    """Measure and print."""
    counts = [int(one) for one in given if one.isdecimal()] or [2, 8, 64, 250, 500, 1000]
    jobs = [(count, 0) for count in counts]
    jobs += [(count, like) for like in FORETOLD for count in (FEW, MORE)]
    found = []
    for count, like in jobs:
        with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as shm:
            found.append(measure(count, shm, like))
    head = ("ranks", "agreed after, median", "worst", "leader and store", "a round trip",
            "calls a rank", "told too late", "leader's memory")  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            f"{one['ranks']:,.0f}" + (f" of {one['like']:,.0f}" if one["like"] else ""),
            f"{one['seconds'] * 1e3:,.0f} ms",
            f"{one['worst'] * 1e3:,.0f} ms",
            f"{one['worked_s'] * 1e3:,.0f} ms",
            f"{one['trip_s'] * 1e3:,.2f} ms",
            f"{one['calls']:,.0f}",
            f"{one['late']:.1%}",
            f"{one['leader_mb']:+,.1f} MB",
        )
        for one in found
    ]
    guesses = {like: foretold([one for one in found if one["like"] == like]) for like in FORETOLD}
    rows += [
        (f"{count:,} (foretold)", f"{took_s:,.1f} s", *[""] * 6)
        for count, took_s in guesses.items()
    ]
    print_table(f"A step for all ranks, {ROUNDS} agreements each", head, rows)
    if "--plot" in given:
        plot(given[given.index("--plot") + 1], found[: len(counts)], guesses)


if __name__ == "__main__":
    main(*sys.argv[1:])
