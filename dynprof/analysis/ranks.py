"""The ranks of one window side by side: whose steps take how long, and who keeps whom waiting.

All ranks of a collective leave it together, so that its ends tell how far their clocks are apart;
its begins, on one clock, tell who came last.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.intervals import clipped, cover, covered
from dynprof.analysis.steps import collectives
from dynprof.analysis.tables import us

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.capture import Capture
    from dynprof.analysis.steps import Step
    from dynprof.analysis.tables import Row, Tables
    from dynprof.analysis.trace import Trace

    Numbers = NDArray[np.int64]

HEADER = (
    "Rank", "Step", "Device_id", "Step Time(us)", "Computing(us)", "Communication(us)",
    "Overlapped(us)", "Free(us)", "Data Loading(us)",
)  # fmt: skip
LATE_NS = 1_000_000
"""Who comes less than this after the median is not called late: clocks and threads scatter."""


@dataclass(frozen=True)
class RankSteps:
    """What one rank did; times in ns.

    Attributes:
        rank: Its number.
        steps: Its steps.
        data_loading: For how long each step waited for data.
        names: The collectives that it took part in, in order.
        begins: When it came to each, since the epoch.
        ends: When it left each.
    """

    rank: int
    steps: tuple[Step, ...]
    data_loading: tuple[int, ...]
    names: tuple[str, ...]
    begins: Numbers
    ends: Numbers


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for.

    Attributes:
        rank: Its number.
        last: In how many collectives it came last, and late.
        of: How many collectives all ranks took part in.
        behind_ns: By how much it came after the median rank, in the middle of those, in ns.
        own_ns: Its mean step time without communication and waiting for data.
        others_ns: The same of the median rank.
    """

    rank: int
    last: int
    of: int
    behind_ns: int
    own_ns: int
    others_ns: int

    def __str__(self) -> str:
        return (
            f"rank {self.rank} comes last to {self.last} of {self.of} collectives, "
            f"{self.behind_ns / 1e6:.1f} ms after the median rank; its own work takes "
            f"{self.own_ns / 1e6:.1f} ms a step, the median rank's {self.others_ns / 1e6:.1f} ms"
        )


def rank_steps(capture: Capture) -> RankSteps:
    """Return what one rank did."""
    trace = capture.trace
    steps, chosen = tuple(capture.steps), collectives(trace)
    begins = capture.base_ns + trace.spans["start"][chosen]
    return RankSteps(
        rank=capture.rank,
        steps=steps,
        data_loading=tuple(_data_loading(trace, steps)),
        names=tuple(trace.name(place) for place in chosen.tolist()),
        begins=begins,
        ends=begins + trace.spans["length"][chosen],
    )


def _data_loading(trace: Trace, steps: Sequence[Step]) -> list[int]:
    chosen = np.flatnonzero(trace.named(_is_loading))
    start = trace.spans["start"][chosen]
    where = cover(start, start + trace.spans["length"][chosen])
    return [covered(clipped(where, step.begin, step.begin + step.length)) for step in steps]


def _is_loading(name: str) -> bool:
    return name == "dataloader" or ("DataLoader" in name and "__next__" in name)


def clock_offsets(ranks: Sequence[RankSteps], shared: int) -> Numbers:
    """Return how far each rank's clock is ahead of the first one's, in ns."""
    if not shared:
        return np.zeros(len(ranks), np.int64)
    ends = np.stack([rank.ends[:shared] for rank in ranks])
    return np.asarray(np.median(ends - ends[0], axis=1), np.int64)


def shared_collectives(ranks: Sequence[RankSteps]) -> int:
    """Return how many collectives, from the first on, are the same on every rank."""
    count = 0
    for names in zip(*(rank.names for rank in ranks), strict=False):
        if len(set(names)) > 1:
            break
        count += 1
    return count


def stragglers(ranks: Sequence[RankSteps]) -> list[Straggler]:
    """Return the ranks that others wait for, the one that came last most often first."""
    shared = shared_collectives(ranks)
    if len(ranks) < 2 or not shared:
        return []
    offsets = clock_offsets(ranks, shared)
    begins = np.stack([rank.begins[:shared] for rank in ranks]) - offsets[:, None]
    behind = begins - np.median(begins, axis=0)
    last = behind.argmax(axis=0)
    late = behind.max(axis=0) > LATE_NS
    own = np.array([_own_work(rank) for rank in ranks])
    found = []
    for place, times in Counter(last[late].tolist()).most_common():
        mine = behind[place][(last == place) & late]
        found.append(
            Straggler(
                rank=ranks[place].rank,
                last=times,
                of=shared,
                behind_ns=int(np.median(mine)),
                own_ns=int(own[place]),
                others_ns=int(np.median(own)),
            )
        )
    return found


def _own_work(rank: RankSteps) -> float:
    """Return the mean time of a step that a rank does not spend in collectives."""
    own = [step.length - (step.communication - step.overlapped) for step in rank.steps]
    return float(np.mean(own)) if own else 0.0


def rank_table(ranks: Sequence[RankSteps]) -> Tables:
    """Return a row for each step of each rank."""
    return {"ranks.csv": (HEADER, _rows(ranks))}


def _rows(ranks: Sequence[RankSteps]) -> Iterator[Row]:
    for rank in sorted(ranks, key=lambda one: one.rank):
        for step, loading in zip(rank.steps, rank.data_loading, strict=True):
            times = (step.length, step.computing, step.communication, step.overlapped, step.free)
            number = "" if step.number is None else step.number
            yield rank.rank, number, step.device_id, *map(us, times), us(loading)
