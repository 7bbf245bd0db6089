"""What an idle ``dp.step()`` costs in a job whose ranks agree, beside one whose ranks do not.

Two ranks on this machine over a real TCPStore; measured is rank 1's, of which the thread looks into
the store. By turns, the best and the mean of many rounds: the mean has what the threads take.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
import timeit
from typing import Any

import dynprof as dp
from benchmarks.tables import print_table

NUMBER, ROUNDS, TURNS = 200_000, 20, 3


def lead(port: int, directory: str, told: Any) -> None:
    """Be rank 0, and have the store, until told to end."""
    from torch.distributed import TCPStore

    os.environ |= {"RANK": "0", "WORLD_SIZE": "2"}
    store = TCPStore("127.0.0.1", port, 2, True, wait_for_workers=False)
    told.send(store.port)
    dp.init(directory, store=store)
    told.recv()
    dp.shutdown()


def rounds_ns() -> list[float]:
    """Return what a step took in each round, in ns."""
    seconds = timeit.repeat("step()", globals={"step": dp.step}, number=NUMBER, repeat=ROUNDS)
    return [one / NUMBER * 1e9 for one in seconds]


def agreeing(port: int) -> list[float]:
    """Return that of a rank that agrees."""
    from torch.distributed import TCPStore

    with tempfile.TemporaryDirectory() as directory:
        dp.init(directory, store=TCPStore("127.0.0.1", port, 2, False))
        while "follows" not in dp.status().agreement:
            time.sleep(0.05)
        found = rounds_ns()
        dp.shutdown()
    return found


def alone() -> list[float]:
    """Return that of a rank that does not."""
    with tempfile.TemporaryDirectory() as directory:
        dp.init(directory)
        found = rounds_ns()
        dp.shutdown()
    return found


def main() -> None:
    """Measure and print."""
    os.environ |= {"RANK": "1", "WORLD_SIZE": "2"}
    found: dict[str, list[float]] = {"by itself": [], "agreeing with the others": []}
    with tempfile.TemporaryDirectory() as directory:
        here, there = multiprocessing.get_context("spawn").Pipe()
        leader = multiprocessing.get_context("spawn").Process(
            target=lead, args=(0, directory, there)
        )
        leader.start()
        port = here.recv()
        for _ in range(TURNS):
            found["by itself"] += alone()
            found["agreeing with the others"] += agreeing(port)
        here.send("end")
        leader.join()
    rows = [
        (name, f"{min(all_ns):,.1f} ns", f"{statistics.mean(all_ns):,.1f} ns")
        for name, all_ns in found.items()
    ]
    print_table("An idle step of a rank", ("the rank", "best", "mean"), rows)


if __name__ == "__main__":
    main()
