"""How long ranks take to agree on a step: the real protocol over a real TCPStore on loopback.

Each rank but the first is a thread with a connection of its own, of a few processes; it walks on
by itself, a step every ten milliseconds, and eight are taken for a machine. The roll is called as
in the first seconds of a job. Then it is measured how long it takes from the proposal until all
have been told, and the processor time of the process that has the leader and the store. What a
round trip of the store takes is measured beside it, on the same connection.

In larger jobs one rank of each machine talks to the store for all there, the less often the more
machines there are; so it does in the jobs of the other rows. They are shown twice. With all their
ranks: one thread replies for each of 200 machines, which have the more ranks; the leader reads what
each rank says, and the store is asked by fewer. And foretold, with eight ranks on a machine: as
long as a few machines take at that pace, the slowest of their agreements, and what each rank more
costs the leader and the store, by one thread for each machine again.

    python -m benchmarks.agreement [RANKS ...] [--plot FILE]
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.agreeing_ranks import RANKS_A_MACHINE, Share, Walker, follow
from benchmarks.agreement_plot import plot
from benchmarks.tables import print_table
from dynprof.config import RankSet
from dynprof.coordination.leader import Leader
from dynprof.coordination.messages import Proposal
from dynprof.coordination.speaker import Speaker
from dynprof.coordination.terms import Terms

ROUNDS, PROCESSES = 7, 4
ROLLS = 8
"""The roll is called so often in the first seconds of a job; from it is known how ranks count."""
FEW, MORE, LARGE = 33, 1001, (10_000, 100_000)
"""Ranks of a job that shows the pace of larger ones, of one that shows the work, and of these."""
MACHINES = 200
"""Of the large jobs with all their ranks."""
SHM = Path("/dev/shm")  # noqa: S108 - a folder of its own below it
CONFIG = '{"active": 3, "record_shapes": true, "experimental_config": {"export_type": ["text"]}}'


class Job(NamedTuple):
    """What is measured in one row.

    Attributes:
        ranks: How many agree.
        like: They look as often as so many do; 0 for their own number.
        a_machine: How many share one.
        is_machine: Whether one thread replies for each machine.
    """

    ranks: int
    like: int = 0
    a_machine: int = RANKS_A_MACHINE
    is_machine: bool = False

    def __str__(self) -> str:
        if self.like and self.ranks < self.like:
            return f"{self.ranks:,} of {self.like:,}"
        return f"{self.ranks:,}" + (f", {self.a_machine} a machine" if self.is_machine else "")


def measure(job: Job, shm: str) -> dict[str, float]:
    """Return what an agreement takes.

    Args:
        job: Of which ranks.
        shm: A folder in the machine's memory.
    """
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, None, True)
    context = multiprocessing.get_context("spawn")
    threads = range(1, job.ranks, job.a_machine if job.is_machine else 1)
    pipes, running = [], []
    for place in range(min(PROCESSES, len(threads))):
        here, there = context.Pipe()
        ranks = threads[place::PROCESSES]
        share = Share(server.port, ranks, job.like or job.ranks, shm, job.a_machine, job.is_machine)
        process = context.Process(target=follow, args=(share, there))
        process.start()
        pipes.append(here)
        running.append(process)
    store = TCPStore("127.0.0.1", server.port, None, False)
    speaker = Speaker(store, job.like or job.ranks)
    leader = Leader(speaker, Walker(0), job.ranks)
    speaker.lead("the benchmark")
    while len(speaker.listeners()) < job.ranks - 1:
        time.sleep(0.05)
    for _ in range(ROLLS):
        time.sleep(1.0)
        leader.roll_call(0)
    memory = psutil.Process().memory_info().rss
    for pipe in pipes:
        pipe.send("begin")
    took, trips, worked = [], [], []
    for number in range(1, ROUNDS + 1):
        time.sleep(1.0)  # as long as nothing happens they look seldom
        before_s = time.process_time()
        made = leader.agree(Proposal(number, CONFIG, 0.0, 30.0), Terms(RankSet.parse("all")))
        worked.append(time.process_time() - before_s)
        assert len(made.ranks) == job.ranks, made
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
        "ranks": job.ranks,
        "like": job.like,
        "seconds": statistics.median(took),
        "worst": max(took),
        "worked_s": statistics.median(worked),
        "trip_s": statistics.median(trips),
        "calls": sum(calls for calls, *_ in found) / (job.ranks - 1) / ROUNDS,
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
    jobs = [Job(count) for count in counts]
    jobs += [Job(count, like, 8, count == MORE) for like in LARGE for count in (FEW, MORE)]
    jobs += [Job(count + 1, count, count // MACHINES, True) for count in LARGE]
    found = []
    for job in jobs:
        with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as shm:
            found.append(measure(job, shm))
    head = ("ranks", "agreed after, median", "worst", "leader and store", "a round trip",
            "calls a rank", "told too late", "leader's memory")  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            str(job),
            f"{one['seconds'] * 1e3:,.0f} ms",
            f"{one['worst'] * 1e3:,.0f} ms",
            f"{one['worked_s'] * 1e3:,.0f} ms",
            f"{one['trip_s'] * 1e3:,.2f} ms",
            f"{one['calls']:,.0f}",
            f"{one['late']:.1%}",
            f"{one['leader_mb']:+,.1f} MB",
        )
        for job, one in zip(jobs, found, strict=True)
    ]
    guesses = {like: foretold([one for one in found if one["like"] == like][:2]) for like in LARGE}
    rows += [
        (f"{count:,} (foretold)", f"{took_s:,.1f} s", *[""] * 6)
        for count, took_s in guesses.items()
    ]
    print_table(f"A step for all ranks, {ROUNDS} agreements each", head, rows)
    if "--plot" in given:
        plot(given[given.index("--plot") + 1], found[: len(counts)], guesses, found[-len(LARGE) :])


if __name__ == "__main__":
    main(*sys.argv[1:])
