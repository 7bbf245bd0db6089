"""Made-up tables of ranks: the matches and the differences of clocks are known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dynprof.analysis.rank_comparison.comparison import Ranks
from dynprof.analysis.rank_comparison.parquet import connection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MS = 1_000_000
BEGAN_NS = 1_700_000_000 * 10**9


@dataclass(frozen=True)
class Taken:
    """A rank's part in a collective, on the rank's own clock; in ns.

    Attributes:
        true: The number of the collective, from 0.
        step: The step of the collective.
        begin: When the rank arrived.
        end: When the rank left.
    """

    true: int
    step: int
    begin: int
    end: int


@dataclass(frozen=True)
class Job:
    """Ranks in a job of all-reduces with one name and size, at uneven intervals.

    Attributes:
        hosts: The host of each rank; empty for one without a name.
        ahead_ms: How far the clock of each is ahead.
        steps: The number of steps.
        each: The number of collectives in a step.
        wait_ms: The latest arrival after the first one, at most.
        loose_ms: The mean delay of a rank's departure.
        marked: Whether the steps are marked.
    """

    hosts: Sequence[str]
    ahead_ms: Sequence[float]
    steps: int = 8
    each: int = 2
    wait_ms: float = 20.0
    loose_ms: float = 0.02
    marked: bool = True
    seed: int = 0
    lacks: dict[int, set[int]] = field(default_factory=dict)
    """The collectives that a rank did not record."""
    last: dict[int, int] = field(default_factory=dict)
    """The last step of a rank's recording."""

    def taken(self) -> list[list[Taken]]:
        """Return the collectives that each rank recorded."""
        chance = random.Random(self.seed)  # noqa: S311 - nothing is secret here
        found: list[list[Taken]] = [[] for _ in self.hosts]
        now = 0.0
        for true in range(self.steps * self.each):
            step = true // self.each
            now += chance.uniform(1, 10) + 30 * (true % self.each == 0) * chance.uniform(0.6, 1)
            came = [now + chance.uniform(0, self.wait_ms) for _ in self.hosts]
            went = max(came) + 0.2
            for rank, (begin, ahead) in enumerate(zip(came, self.ahead_ms, strict=True)):
                end = went + chance.expovariate(1 / self.loose_ms)
                here = Taken(
                    true, step, *(BEGAN_NS + round((t + ahead) * MS) for t in (begin, end))
                )
                if true not in self.lacks.get(rank, ()) and step <= self.last.get(rank, step):
                    found[rank].append(here)
                now = max(now, end)
        return found

    def ranks(self, folder: Path) -> Ranks:
        """Return the compared ranks."""
        return compared(folder, self.hosts, self.taken(), marked=self.marked)

    def but(self, **changes: object) -> Job:
        """Return a copy with changes."""
        return replace(self, **changes)  # type: ignore[arg-type]


def compared(
    folder: Path, hosts: Sequence[str], taken: Sequence[Sequence[Taken]], *, marked: bool = True
) -> Ranks:
    """Write the tables of ranks; return the ranks."""
    steps, collectives, operators = [], [], []
    for rank, (host, mine) in enumerate(zip(hosts, taken, strict=True)):
        numbers = sorted({one.step for one in mine}) if marked else [-1]
        steps += [f"({rank}, {len(hosts)}, '{host}', {number})" for number in numbers]
        collectives += [
            f"({rank}, {place}, {one.begin}, {one.end}, {one.step if marked else -1})"
            for place, one in enumerate(mine)
        ]
        operators.append(f"({rank})")
    queries = {
        "steps": "SELECT *, 'host' AS device, '' AS kind, -1 AS tokens, true AS recorded, "
        "0 AS begin_ns, 1 AS length_ns, 0 AS stage_ns, 0 AS preparing_ns, "
        "1 AS computing_ns, 0 AS communication_ns, 0 AS overlapped_ns, "
        "0 AS free_ns, 0 AS data_loading_ns "
        f"FROM (VALUES {', '.join(steps)}) t(rank, world_size, host, step)",
        "collectives": "SELECT *, '' AS \"group\", 'gloo:all_reduce' AS name, "
        "'all reduce' AS kind, -1 AS size, -1 AS members, 0.0 AS factor, -1 AS sender, "
        f"-1 AS receiver FROM (VALUES {', '.join(collectives)}) "
        "t(rank, place, begin_ns, end_ns, step)",
        "operators": "SELECT *, 'aten::mm' AS name, 'host' AS place, 1.0 AS count, 1.0 AS self_ns "
        f"FROM (VALUES {', '.join(operators)}) t(rank)",
    }
    files = {name: [folder / f"{name}.parquet"] for name in queries}
    with connection() as database:
        for name, query in queries.items():
            database.execute(f"COPY ({query}) TO '{files[name][0]}' (FORMAT parquet)")
    return Ranks(files)
