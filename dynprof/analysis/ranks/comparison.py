"""The ranks of one window side by side: whose steps take how long, and who keeps whom waiting.

On one clock, the begins of a collective tell who came last. Reads the Parquet tables of each rank,
and holds no trace: thousands of ranks fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dynprof.analysis.output.tables import us
from dynprof.analysis.ranks.bandwidth import Bandwidth
from dynprof.analysis.ranks.clocks import (
    Arrival,
    arrivals,
    create_arrivals,
    hosts,
    match,
    offsets,
    uncertainty_ns,
)
from dynprof.analysis.ranks.long_steps import long_steps
from dynprof.analysis.ranks.parquet import RANK_TABLES, STEPS, connection
from dynprof.errors import CaptureError, describe
from dynprof.runtime.plural import counted, spanned
from dynprof.runtime.safe_open import open_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from duckdb import DuckDBPyConnection

    from dynprof.analysis.output.tables import Tables

STEPS_HEADER = (
    "Rank", "Step", "Device_id", "Step Time(us)", "Computing(us)", "Communication(us)",
    "Overlapped(us)", "Free(us)", "Data Loading(us)",
)  # fmt: skip
OPERATORS_HEADER = (
    "Name", "Where", "Count of Slowest", "Count of Median", "Own Time of Slowest(us)",
    "Own Time of Median(us)", "Difference(us)",
)  # fmt: skip
MOST_NAMED = 3
_LAST = """
CREATE TEMP TABLE last AS
WITH arrivals AS (
    SELECT "group", place, rank, begin_ns - ahead_ns AS came_ns, uncertainty_ns
    FROM shared JOIN clocks USING ("group", rank)
), behind AS (
    SELECT "group", place, rank, uncertainty_ns, came_ns
        - quantile_disc(came_ns, 0.5) OVER (PARTITION BY "group", place) AS behind_ns
    FROM arrivals
)
SELECT "group", place, arg_max(rank, behind_ns) AS rank, max(behind_ns) AS behind_ns
FROM behind GROUP BY "group", place HAVING max(behind_ns) > greatest($late, max(uncertainty_ns))
"""
"""Who came last to each collective, and by how much after the median member.

Not by less than is known of the clocks.
"""
_OWN = """
CREATE TEMP TABLE own AS
SELECT rank, avg(length_ns - communication_ns + overlapped_ns) AS own_ns FROM steps GROUP BY rank
"""
"""The mean time of a step that each rank does not spend in collectives alone."""
_STRAGGLERS = """
WITH taken AS (SELECT rank, count(*) AS of FROM shared GROUP BY rank)
SELECT rank, count(*) AS times, any_value(of), quantile_disc(behind_ns, 0.5),
    any_value(own_ns),
    (SELECT quantile_disc(own_ns, 0.5) FROM own AS others WHERE others.rank <> last.rank),
    (SELECT count(*) FROM own)
FROM last JOIN own USING (rank) JOIN taken USING (rank)
GROUP BY rank HAVING times >= $often * any_value(of)
ORDER BY times DESC, sum(behind_ns) DESC, rank
"""
_DIFFERENCES = """
WITH slow AS (SELECT name, place, count, own_ns FROM operators WHERE rank = $slowest),
    middle AS (SELECT name, place, count, own_ns FROM operators WHERE rank = $median)
SELECT name, place, coalesce(slow.count, 0), coalesce(middle.count, 0),
    coalesce(slow.own_ns, 0), coalesce(middle.own_ns, 0)
FROM slow FULL JOIN middle USING (name, place)
ORDER BY abs(coalesce(slow.own_ns, 0) - coalesce(middle.own_ns, 0)) DESC, name
"""
_STEPS = """
SELECT rank, step, device, length_ns, computing_ns, communication_ns, overlapped_ns, free_ns,
    data_loading_ns
FROM steps ORDER BY rank, step
"""
_MATCHED = """
WITH fitting AS (SELECT DISTINCT "group", place FROM shared),
    whole AS (SELECT DISTINCT "group", place FROM kept)
SELECT (SELECT count(*) FROM fitting), (SELECT count(*) FROM strayed), count(*) FROM whole
"""
"""Collectives, each once, however many ranks took part."""
_MEANS = """
SELECT rank, avg(length_ns), avg(computing_ns), avg(communication_ns), avg(overlapped_ns)
FROM steps GROUP BY rank ORDER BY rank
"""


class Ranks:
    """Several ranks of one window.

    Args:
        files: Where each table of :data:`RANK_TABLES` lies, one file a capture, the newest last.
        requested: Returns which ranks of a job of so many were requested for one; left out, all.

    Attributes:
        older: How many captures are left out, as newer ones are of the same ranks.

    Raises:
        CaptureError: A table cannot be read.
    """

    def __init__(
        self, files: Mapping[str, Sequence[Path]], requested: Callable[[int], Iterable[int]] = range
    ) -> None:
        import duckdb

        self._requested = requested
        self._database = connection()
        try:
            self._places = self._newest(files[STEPS])
            newest = sorted(set(self._places.values()))
            for name in RANK_TABLES:  # an empty trace has no rows, nor then a rank
                chosen = _names([files[name][place] for place in newest or [0]])
                self._database.read_parquet(_patterns(chosen)).create(name)
            match(self._database)
        except (duckdb.Error, OSError) as error:
            text = "what was made of ranks before cannot be read, analyse them again"
            raise CaptureError(f"{text}: {describe(error)}") from error
        self.older = len(files[STEPS]) - len(newest)
        self._database.execute(_LAST, {"late": LATE_NS})
        self._database.execute(_OWN)

    def _newest(self, files: Sequence[Path]) -> dict[int, int]:
        """Return the place of the last file of each rank."""
        names = _names(files)
        rows = self._database.read_parquet(_patterns(names), filename=True)
        found = rows.project("rank, filename").distinct().fetchall()
        places = {name: place for place, name in enumerate(names)}
        ranks = sorted((places[name], rank) for rank, name in found)
        return dict(sorted((rank, place) for place, rank in ranks))

    def __len__(self) -> int:
        return len(self._places)

    def means(self) -> list[RankMean]:
        """Return the mean step of each rank."""
        return [RankMean(*row) for row in self._rows(_MEANS)]

    def stragglers(self) -> list[Straggler]:
        """Return the ranks that others often wait for, the one that came last most often first."""
        return [Straggler(*map(round, row)) for row in self._rows(_STRAGGLERS, {"often": OFTEN})]

    def words(self) -> list[str]:
        """Return what is to be said of the ranks: who keeps whom waiting, and who is missing."""
        fitting, strayed, total = self._rows(_MATCHED)[0]
        matched = fitting + strayed
        said = [str(one) for one in self.stragglers()[:MOST_NAMED]]
        said += self.bandwidth.words()[:MOST_NAMED]
        if not said and fitting:
            said = ["no rank keeps the others waiting"]
        if matched < total:
            said.append(
                f"{matched:,} of {counted(total, 'collective')} could be matched between all ranks "
                "of their group, from the first on; of the others nobody knows who waits for whom"
            )
        elif not total:
            said = ["no collective was recorded, so nobody knows who waits for whom"]
        if strayed:
            said.append(
                f"{strayed:,} of {counted(total, 'collective')} did not end together, as when a "
                "clock is set meanwhile: nobody knows who waits for whom there"
            )
        said += long_steps(self._database)
        said += self.different_steps()
        world_size = self._rows("SELECT max(world_size) FROM steps")[0][0] or 0
        requested = set(self._requested(world_size))
        if missing := requested - self._places.keys():
            said.append(f"missing here: {len(missing):,} of {counted(len(requested), 'rank')}")
        if self.older:
            said.append(f"left out: {counted(self.older, 'older capture')} of the same ranks")
        return said

    def slowest(self) -> int:
        """Return the rank that others wait for most, else the one with the most own work."""
        if found := self.stragglers():
            return found[0].rank
        query = "SELECT rank FROM own ORDER BY own_ns DESC, rank LIMIT 1"
        return int(self._rows(query)[0][0])

    def slowest_and_why(self) -> str:
        """Return which rank :meth:`slowest` is, and why it is that one."""
        why = "which others wait for" if self.stragglers() else "which has the most work of its own"
        return f"rank {self.slowest()}, {why}"

    def file_index(self, rank: int) -> int:
        """Return the place among the files of the one that holds a rank."""
        return self._places[rank]

    def median(self) -> int:
        """Return the rank in the middle of all but :meth:`slowest`, by its own work."""
        slowest = self.slowest()
        query = "SELECT rank FROM own WHERE rank <> $slowest ORDER BY own_ns, rank"
        ranked = [row[0] for row in self._rows(query, {"slowest": slowest})] or [slowest]
        return int(ranked[(len(ranked) - 1) // 2])

    def operator_differences(
        self, slowest: int, median: int
    ) -> list[tuple[str, str, float, float, float, float]]:
        """Return, of two ranks, names and places, counts and own ns in a step, the first's first.

        What differs most comes first.
        """
        return self._rows(_DIFFERENCES, {"slowest": slowest, "median": median})

    def tables(self) -> Tables:
        """Return a row for each step of each rank, and for each operator of two of them."""
        return {
            "ranks.csv": (STEPS_HEADER, self._step_rows()),
            "slowest_rank.csv": (OPERATORS_HEADER, self._operator_rows()),
            **self.bandwidth.tables(),
        }

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query over the tables of all ranks finds."""
        return self._rows(query)

    @cached_property
    def bandwidth(self) -> Bandwidth:
        """How fast data moves between them."""
        return Bandwidth(self._database)

    def clocks(self) -> dict[int, tuple[int, int]]:
        """Return, by rank, the first of those on its clock, and by how many ns it is ahead of it.

        That is one clock once set right, by what ranks of one host share, and by collectives that
        ranks of several do. A rank that shares nothing with another one is not in it.
        """
        return offsets(self._database)

    def hosts(self) -> dict[int, int]:
        """Return the first rank of the host of each; a rank whose host has no name has its own."""
        return hosts(self._database)

    def uncertainty_ns(self) -> int:
        """Return how well it is known how far clocks are apart."""
        return uncertainty_ns(self._database)

    def arrivals_among(self, among: Sequence[int]) -> Callable[[int], list[Arrival]]:
        """Return what returns, of each of some ranks, the collectives that it shares with them."""
        create_arrivals(self._database, among)
        return lambda rank: arrivals(self._database, rank)

    def different_steps(self) -> list[str]:
        """Return, where ranks recorded different steps, which ones did which, in a sentence."""
        return different_steps(self._database)

    def numbers(self) -> list[int]:
        """Return which ranks there are."""
        return sorted(self._places)

    def _step_rows(self) -> list[tuple[Any, ...]]:
        found = self._rows(_STEPS)
        return [(r, "" if s < 0 else s, device, *map(us, rest)) for r, s, device, *rest in found]

    def _operator_rows(self) -> list[tuple[Any, ...]]:
        return [
            (
                name,
                place,
                f"{more:g}",
                f"{less:g}",
                us(round(own)),
                us(round(other)),
                us(round(own - other)),
            )
            for name, place, more, less, own, other in self.operator_differences(
                self.slowest(), self.median()
            )
        ]

    def _rows(self, query: str, values: dict[str, float] | None = None) -> list[tuple[Any, ...]]:
        return self._database.execute(query, values).fetchall()


def _names(files: Sequence[Path]) -> list[str]:
    """Return their names for DuckDB, which would wait at a FIFO.

    Raises:
        OSError: One is no regular file, or cannot be read.
    """
    for path in files:
        open_inside(path).close()
    return [str(path) for path in files]


def _patterns(names: Sequence[str]) -> list[str]:
    """Return what matches these files alone: DuckDB would take ``r[1]`` for ``r1``."""
    return [re.sub(r"[\[*?]", r"[\g<0>]", name) for name in names]


_MOST_NAMED = 8
_SPANNED = """
SELECT rank, min(step), max(step) FROM steps WHERE step >= 0 GROUP BY rank ORDER BY rank
"""


def different_steps(database: DuckDBPyConnection) -> list[str]:
    """Return, where ranks recorded different steps, which ones did which, in a sentence."""
    ranks: dict[tuple[int, int], list[int]] = {}
    for rank, *recorded in database.execute(_SPANNED).fetchall():
        ranks.setdefault((recorded[0], recorded[1]), []).append(rank)
    if len(ranks) < 2:
        return []
    said = ", ".join(
        f"{_listed(some)} {spanned(*recorded)}" for recorded, some in sorted(ranks.items())
    )
    first, last = max(first for first, _ in ranks), min(last for _, last in ranks)
    common = f"{spanned(first, last)} on all" if first <= last else "no step on all"
    return [f"the ranks recorded different steps: {said}; {common}"]


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = f" and {len(ranks) - _MOST_NAMED:,} more" if len(ranks) > _MOST_NAMED else ""
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {shown}{more}"


OFTEN = 0.2
"""Who comes last to a smaller share of its collectives is not called a straggler."""
LATE_NS = 1_000_000
"""Who comes less than this after the median is not called late: clocks and threads scatter."""


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for.

    Attributes:
        rank: Its number.
        last: In how many collectives it came last, and late.
        of: How many it took part in, of those that can be compared.
        behind_ns: By how much it came after the median rank, in the middle of those, in ns.
        own_ns: Its mean step time without communication that nothing hides.
        others_ns: The same of the median of the other ranks.
        ranks: How many ranks are compared, with this one.
    """

    rank: int
    last: int
    of: int
    behind_ns: int
    own_ns: int
    others_ns: int
    ranks: int

    @property
    def others(self) -> str:
        """Whose :attr:`others_ns` is."""
        return "the other rank's" if self.ranks == 2 else "the median of the others"

    def __str__(self) -> str:
        return (
            f"rank {self.rank} comes last to {self.last:,} of {counted(self.of, 'collective')}, "
            f"{self.behind_ns / 1e6:.1f} ms after the {'other' if self.ranks == 2 else 'median'} "
            f"rank; its own work takes {self.own_ns / 1e6:.1f} ms a step on average, {self.others} "
            f"{self.others_ns / 1e6:.1f} ms"
        )


@dataclass(frozen=True)
class RankMean:
    """The mean step of one rank; times in ns.

    Attributes:
        rank: Its number.
        length: How long they took.
        computing: For how long kernels, or operators of the host, computed.
        communication: For how long collectives ran.
        overlapped: For how long both did.
    """

    rank: int
    length: float
    computing: float
    communication: float
    overlapped: float

    @property
    def waiting(self) -> float:
        """Communication that nothing hides."""
        return self.communication - self.overlapped
