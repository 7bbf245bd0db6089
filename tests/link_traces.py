"""Traces of ranks that send data to each other; some links are slow."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

RANKS, ROUNDS = 4, 12
ELEMENTS = 2_500_000
USUAL_NS = 1_000_000
"""10 MB in a millisecond: 10 GB/s."""
AHEAD_US = (0, 250_000.125, -1_800_000, 3.5)

Event = dict[str, Any]


def kernel(kind: str, stream: int, begin: float, end: float, **told: Any) -> Event:
    """Return an NCCL kernel as Kineto describes it; times in us."""
    args = {"device": 0, "stream": stream, "Collective name": kind, "dtype": "Float",
            "In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, **told}  # fmt: skip
    times = {"ts": round(begin, 3), "dur": round(end - begin, 3)}
    about = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(args)"}
    return {**about, "pid": 0, "tid": stream, **times, "args": args}


def ring(
    folder: Path, slow: dict[tuple[int, int], float], late_us: dict[int, float], seed: int = 0
) -> None:
    """Write ranks that each send to the next one; some links are slower, some ranks later."""
    chance = random.Random(seed)  # noqa: S311 - nothing is secret here
    events: dict[int, list[Event]] = defaultdict(list)
    now = 0.0
    for _ in range(ROUNDS):
        came = {rank: now + late_us.get(rank, 0) + chance.randint(0, 20) for rank in range(RANKS)}
        ends = [now]
        for rank in range(RANKS):
            other = (rank + 1) % RANKS
            times = slow.get((rank, other), 1.0)
            end = max(came[rank], came[other]) + times * USUAL_NS / 1000
            told = {"Group size": RANKS, "Process Group Name": "0"}
            one = kernel("send", 20, came[rank], end, **told, **{"Dst Rank": other})
            two = kernel("recv", 21, came[other], end, **told, **{"Src Rank": rank})
            events[rank].append(one)
            events[other].append(two)
            ends.append(end)
        now = max(ends) + 500
    save(folder, events)


def pairs(folder: Path, slow: dict[tuple[int, int], float], late_us: dict[int, float]) -> None:
    """Write ranks that reduce in groups of two, one group after the other."""
    events: dict[int, list[Event]] = defaultdict(list)
    now = 0.0
    for _ in range(ROUNDS):
        for one, two in itertools.combinations(range(RANKS), 2):
            came = {rank: now + late_us.get(rank, 0) for rank in (one, two)}
            end = max(came.values()) + slow.get((one, two), 1.0) * USUAL_NS / 1000
            told = {"Group size": 2, "Process Group Name": f"{one}{two}",
                    "Process Group Ranks": f"[{one}, {two}]"}  # fmt: skip
            for rank in (one, two):
                events[rank].append(kernel("allreduce", 20, came[rank], end, **told))
            now = end + 500
    save(folder, events)


def save(folder: Path, events: dict[int, list[Event]]) -> None:
    """Write each rank's trace with its own clock."""
    for rank, mine in events.items():
        shifted = [{**e, "ts": round(e["ts"] + AHEAD_US[rank] + 1e7, 3)} for e in mine]
        trace = {"baseTimeNanoseconds": 10**18, "traceEvents": shifted,
                 "distributedInfo": {"rank": rank, "world_size": RANKS}}  # fmt: skip
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))
