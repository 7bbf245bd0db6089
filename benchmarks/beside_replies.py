"""What training loses while its rank, the leader, reads what 10,000 others say.

A model of ten small layers, whose steps ask for the interpreter all the time, on one thread;
another one reads the replies to a proposal, as an agreement does, in short turns and, to compare,
in one go.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.agreeing_ranks import Walker
from benchmarks.tables import print_table
from dynprof.coordination import wire
from dynprof.coordination.messages import Proposal, Reply
from dynprof.coordination.wire import lines_of, to_text

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, ROUNDS, LAYERS = 10_000, 15, 10


def training() -> Callable[[], float]:
    """Return a step of it."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(LAYERS)])
    optimizer, rows = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(32, 64)

    def step() -> float:
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def steps_beside(other: Callable[[], object], step: Callable[[], float]) -> tuple[float, ...]:
    """Return how long another thread takes, the steps a second meanwhile, and the longest one."""
    thread = threading.Thread(target=other)
    ends_s = [time.perf_counter()]
    thread.start()
    while thread.is_alive():
        step()
        ends_s.append(time.perf_counter())
    took_s = ends_s[-1] - ends_s[0]
    longest_s = max(after - before for before, after in itertools.pairwise(ends_s))
    return took_s, (len(ends_s) - 1) / took_s, longest_s


def main() -> None:
    """Measure by turns and print."""
    said = Proposal(1, "{}", 0.0, 30.0)
    raw = "".join(f"{to_text(Walker(rank).consider(said))}\n" for rank in range(RANKS)).encode()
    step, at_a_time_s = training(), wire.AT_A_TIME_S
    found: dict[str, list[tuple[float, ...]]] = {}

    def read_in(turns_s: float) -> list[Reply]:
        wire.AT_A_TIME_S = turns_s
        return lines_of(Reply, raw)

    for _ in range(ROUNDS):
        for name, other in {
            "nothing": lambda: time.sleep(0.2),
            "short turns": lambda: read_in(at_a_time_s),
            "one go": lambda: read_in(math.inf),
        }.items():
            found.setdefault(name, []).append(steps_beside(other, step))
    rows = []
    for name, rounds in found.items():
        took_s, pace, longest_s = map(statistics.median, zip(*rounds, strict=True))
        most_s = max(longest_s for *_, longest_s in rounds)
        rows.append((name, f"{took_s * 1e3:,.0f} ms", f"{pace:,.0f}", f"{longest_s * 1e3:,.1f} ms",
                     f"{most_s * 1e3:,.1f} ms"))  # fmt: skip
    head = ("read in", "took", "steps a second", "longest step, median", "worst")
    print_table(f"Training beside the reading of {RANKS:,} replies", head, rows)


if __name__ == "__main__":
    main()
