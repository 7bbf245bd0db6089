"""Measure how long ranks take to agree on a step, with the real protocol over a TCPStore.

The store is on loopback. Each rank but the first is a thread in one of two processes. It has its
own connection and blocks in the store's ``wait``. Like a rank with steps of 10 ms, it replies after
a delay. The time runs from the proposal until every rank knows the step. For comparison, a bare
``set`` wakes one thread in ``wait`` on the same store.

python -m benchmarks.agreement [RANKS ...]
"""

from __future__ import annotations

import multiprocessing
import queue
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from benchmarks.tables import print_table
from dynprof.config import ProfilerConfig
from dynprof.ranks.agreement_rules import Agreement
from dynprof.ranks.leader import Leader
from dynprof.ranks.messages import (
    Joined,
    LeaderMessage,
    LeaderStarted,
    Message,
    Opening,
    Proposal,
    Question,
    Reply,
    Report,
    parse_leader_message,
    parse_rank_messages,
    to_text,
)
from dynprof.ranks.store import FOREVER, NO_MESSAGE, LogReader, LogWriter, wait_for_notice

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection

    from dynprof.ranks.job_windows import JobWindows

ROUNDS, PROCESSES, STEP_S = 7, 2, 0.01
RANKS = (2, 8, 64, 250, 1000, 2000)
CONFIG = '{"active": 3, "record_shapes": true, "experimental_config": {"export_type": ["text"]}}'
STACK_BYTES = 256 << 10  # The default of 8 MB is too much for thousands of threads.
FORETOLD = 10_000


class Counted:
    """A store that counts its calls."""

    def __init__(self, store: Any) -> None:
        self.store, self.calls = store, 0

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.calls += 1
            return getattr(self.store, name)(*given)

        return call


class Records:
    """Records that only note what the ranks agree on."""

    pending: dict[int, set[int]] = {}
    is_stalled = True

    def __init__(self, made: queue.SimpleQueue[Agreement]) -> None:
        self._made = made

    def receive(self, report: Report) -> None:
        """Ignore it."""

    def mark_lost(self, ranks: Iterable[int], _why: str = "") -> None:
        """Ignore it."""

    def conclude(self, made: Agreement) -> None:
        """Start the analysis."""
        self._made.put(made)

    def wait_for(self, number: int, ranks: object) -> None:
        """Ignore it."""


def reply_of(rank: int, message: Message, place: int) -> Reply:
    """Return the reply of an idle rank."""
    step = int(time.monotonic() / STEP_S)
    number = getattr(message, "number", 0)
    report = Report(rank, number, host=f"node{rank // 8}", state="idle", step_s=STEP_S)
    return Reply(rank, place, report, takes_part=True, step=step, fast_s=STEP_S)


def be(
    rank: int, port: int, stores: list[Counted], told: queue.SimpleQueue[tuple[float, bool]]
) -> None:
    """Connect, which takes torch 0.2 s, and follow the leader until it stops."""
    from torch.distributed import TCPStore

    store = Counted(TCPStore("127.0.0.1", port, None, False, FOREVER))
    stores.append(store)
    reader = LogReader(store, store)
    reader.send_news(to_text(Joined(rank)))
    while True:
        place, raw = reader.wait()
        if raw is None or raw == NO_MESSAGE.encode() or (said := parse_leader_message(raw)) is None:
            return
        if isinstance(said.message, (Proposal, Question)):
            reply = reply_of(rank, said.message, place)
            reader.reply(place, to_text(reply), said.expect)
        elif isinstance(said.message, Opening):
            is_late = int(time.monotonic() / STEP_S) >= said.message.step
            told.put((time.monotonic(), is_late))


def follow(port: int, ranks: Iterable[int], pipe: Connection) -> None:
    """Run some ranks in a process; print when the last one heard of each step."""
    threading.stack_size(STACK_BYTES)
    told: queue.SimpleQueue[tuple[float, bool]] = queue.SimpleQueue()
    stores: list[Counted] = []
    for rank in ranks:
        threading.Thread(target=be, args=(rank, port, stores, told), daemon=True).start()
        time.sleep(0.005)  # limits parallel connects: the server's backlog is short
    pipe.send("begun")
    for _ in range(ROUNDS):
        pipe.recv()
        before = sum(store.calls for store in stores)
        pipe.send("ready")
        found = [told.get() for _ in stores]
        time.sleep(0.2)  # until each rank waits again
        calls = sum(store.calls for store in stores) - before
        pipe.send((max(at_s for at_s, _ in found), sum(late for _, late in found), calls))
    pipe.recv()


class Bench:
    """A leader of ranks that are threads of other processes."""

    def __init__(self, count: int) -> None:
        from torch.distributed import TCPStore

        self.count = count
        self._server = TCPStore("127.0.0.1", 0, None, True, FOREVER)
        self._pipes = [self._begin(place) for place in range(min(PROCESSES, count - 1))]
        connections = (
            Counted(TCPStore("127.0.0.1", self._server.port, None, False, FOREVER))
            for _ in range(4)
        )
        calls, self._waits, self._bare, self._waker = connections
        self._made = queue.SimpleQueue[Agreement]()
        self._writer = LogWriter(calls)
        self._leader = Leader(
            count,
            "bench",
            self._say,
            _mine,
            cast("JobWindows", Records(self._made)),
            time.monotonic,
        )
        self._leader.begin()
        while len(self._leader.others) < count - 1:
            self._hear()
        self._ask_processes()

    def _begin(self, place: int) -> Connection:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        share = range(1 + place, self.count, PROCESSES)
        context.Process(target=follow, args=(self._server.port, share, there)).start()
        return here

    def _ask_processes(self, text: str = "") -> list[Any]:
        for pipe in self._pipes:
            if text:
                pipe.send(text)
        return [pipe.recv() for pipe in self._pipes]

    def _say(self, message: Message, expect: int) -> int:
        text = to_text(LeaderMessage("bench", expect, message))
        is_first = isinstance(message, LeaderStarted)
        if is_first:
            return self._writer.begin(text)
        return self._writer.send(text, has_replies=bool(expect))

    def _hear(self) -> None:
        wait_for_notice(self._waits)
        self._leader.receive(parse_rank_messages(self._writer.take()))

    def agree(self, number: int) -> tuple[float, int, int]:
        """Return the duration, the number of ranks that heard too late, and the calls."""
        self._ask_processes("begin")
        began_s = time.monotonic()
        self._leader.propose(Proposal(number, CONFIG, 0.0), ProfilerConfig())
        while self._made.empty():
            self._hear()
        agreement = self._made.get()
        assert len(agreement.ranks) == self.count, agreement
        found = self._ask_processes()
        took_s = max(at_s for at_s, _, _ in found) - began_s
        return took_s, sum(late for _, late, _ in found), sum(calls for _, _, calls in found)

    def trip(self, number: int) -> float:
        """Return the duration of a bare set and wait."""
        return round_trip(self._bare, self._waker, f"trip{number}")

    def end(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send("end")


def _mine(message: Message, place: int) -> Reply:
    return reply_of(0, message, place)


def measure(count: int) -> dict[str, float]:
    """Return the durations of agreements among this number of ranks."""
    bench = Bench(count)
    found = [(*bench.agree(number), bench.trip(number)) for number in range(1, ROUNDS + 1)]
    bench.end()
    took = [took_s for took_s, *_ in found]
    return {
        "seconds": statistics.median(took),
        "worst": max(took),
        "late": sum(late for _, late, _, _ in found),
        "operations": sum(calls for _, _, calls, _ in found) / ROUNDS / (count - 1),
        "trip_s": statistics.median(trip_s for *_, trip_s in found),
    }


def round_trip(store: Counted, waker: Counted, key: str) -> float:
    """Return how long a waiting thread takes to see that a key was set."""
    woken: queue.SimpleQueue[float] = queue.SimpleQueue()

    def wait() -> None:
        store.wait([key], FOREVER)
        woken.put(time.monotonic())

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.05)
    began_s = time.monotonic()
    waker.set(key, "x")
    return woken.get() - began_s


def main() -> None:
    """Measure, and print a table."""
    counts = list(map(int, sys.argv[1:])) or RANKS
    rows, seconds = [], {}
    for count in counts:
        found = measure(count)
        seconds[count] = found["seconds"]
        cells = (
            f"{count:,}",
            f"{found['seconds'] * 1e3:,.0f} ms",
            f"{found['worst'] * 1e3:,.0f} ms",
        )
        rest = (
            f"{found['operations']:.1f}",
            f"{found['late']:,.0f}",
            f"{found['trip_s'] * 1e3:.2f} ms",
        )
        rows.append((*cells, *rest))
    if len(seconds) > 1:
        fewer, more = sorted(seconds)[-2:]
        each_s = (seconds[more] - seconds[fewer]) / (more - fewer)
        modelled_s = seconds[more] + each_s * (FORETOLD - more)
        rows.append((f"{FORETOLD:,}, modelled", f"{modelled_s * 1e3:,.0f} ms", "", "", "", ""))
    head = (
        "ranks",
        "told after, median",
        "worst",
        "store operations a rank",
        "late",
        "set to wait",
    )
    print_table("Ranks that agree", head, rows)


if __name__ == "__main__":
    main()
