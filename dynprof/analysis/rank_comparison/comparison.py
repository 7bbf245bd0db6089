"""Compares the ranks of one window: step times, which ranks keep others waiting, slow links.

On one clock, the start times of a collective show which rank arrived last. It reads the Parquet
tables of each rank, not the traces: thousands of ranks fit into memory.

A rank waits in a collective until the last one arrives; the rest of its time is moving data. A slow
rank makes others wait, but moves data as fast as they do. Over a slow link no rank arrives late,
but moving takes long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.communication import LARGE
from dynprof.analysis.measures.timeline.breakdown import ITERATION, MAX_NAMED, STEP, is_behind, ms
from dynprof.analysis.measures.timeline.steps import median_of, outliers_by_kind
from dynprof.analysis.rank_comparison.clocks import (
    Arrival,
    arrivals,
    create_arrivals,
    hosts,
    match,
    offsets,
    uncertainty_ns,
)
from dynprof.analysis.rank_comparison.parquet import RANK_TABLES, STEPS, connection
from dynprof.analysis.vendor_files.communication import megabytes, rate
from dynprof.analysis.vendor_files.tables import UNKNOWN_TIME, us
from dynprof.errors import CaptureError, describe
from dynprof.runtime.plural import counted, listed_ranks, number, spanned
from dynprof.runtime.safe_open import open_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from duckdb import DuckDBPyConnection

    from dynprof.analysis.vendor_files.tables import Row, Tables

STEPS_HEADER = (
    "Rank", "Step", "Device_id", "Step Time(us)", "Computing(us)", "Communication(us)",
    "Overlapped(us)", "Free(us)", "Data Loading(us)",
)  # fmt: skip
OPERATORS_HEADER = (
    "Name", "Where", "Count of Slowest", "Count of Median", "Self Time of Slowest(us)",
    "Self Time of Median(us)", "Difference(us)",
)  # fmt: skip
_MAX_LISTED_RANKS = 8
"""Ranks that a sentence lists; the others are only counted."""
_FILES = """
SELECT rank, filename, bool_and(recorded), min(begin_ns), max(begin_ns + length_ns)
FROM files GROUP BY rank, filename ORDER BY 1, 4, 2
"""
"""The files of each rank, whether the rank was recorded with it, and when it begins and ends."""
_SPANNED = """
SELECT rank, min(step), max(step) FROM steps WHERE step >= 0 GROUP BY rank ORDER BY rank
"""
OFTEN = 0.2
"""Share of its collectives to which a rank must come last to be called a straggler."""
LATE_NS = 1_000_000
"""Time in ns after the median from which a rank is late: clocks and threads vary by less."""
HELD_UP = 0.5
"""Share of its delay that a rank has at the end of the collective before, if a link is slow."""
MAX_IN_VERDICT = 3
"""Stragglers, and slow links, that the verdict names: the first ones are the worst."""
_BEHIND = """
CREATE TEMP TABLE behind AS
WITH arrivals AS (
    SELECT "group", place, rank, begin_ns - ahead_ns AS came_ns, uncertainty_ns,
        lag(end_ns - ahead_ns) OVER (PARTITION BY "group", rank ORDER BY place) AS left_ns
    FROM shared JOIN clocks USING ("group", rank)
)
SELECT "group", place, rank, uncertainty_ns,
    came_ns - quantile_disc(came_ns, 0.5) OVER (PARTITION BY "group", place) AS behind_ns,
    left_ns - quantile_disc(left_ns, 0.5) OVER (PARTITION BY "group", place) AS left_late_ns
FROM arrivals
"""
"""How long after the median member each rank came to each collective; negative if before.

Also how long after it the rank left the collective before that; NULL for the first one.
"""
_LAST = """
CREATE TEMP TABLE last AS
SELECT "group", place, arg_max(rank, behind_ns) AS rank, max(behind_ns) AS behind_ns,
    arg_max(left_late_ns, behind_ns) AS left_late_ns
FROM behind GROUP BY "group", place HAVING max(behind_ns) > greatest($late, max(uncertainty_ns))
"""
"""The last rank of each collective, and its time after the median member.

Times within the uncertainty of the clocks do not count.
"""
_LATENESS = """
SELECT b.rank, c.id, b.behind_ns AS late_ns, l.rank IS NOT DISTINCT FROM b.rank AS is_last
FROM behind b JOIN shared c USING ("group", place, rank) LEFT JOIN last l USING ("group", place)
"""
_OWN = """
CREATE TEMP TABLE own AS
SELECT rank, avg(length_ns - communication_ns + overlapped_ns) AS own_ns FROM steps GROUP BY rank
"""
"""The mean step time of each rank, without communication that nothing overlaps."""
_STRAGGLERS = """
WITH taken AS (SELECT rank, count(*) AS of FROM shared GROUP BY rank)
SELECT rank, count(*) AS times, any_value(of), quantile_disc(behind_ns, 0.5),
    coalesce(quantile_disc(left_late_ns, 0.5), 0), any_value(own_ns),
    (SELECT quantile_disc(own_ns, 0.5) FROM own AS others WHERE others.rank <> last.rank),
    (SELECT count(*) FROM own)
FROM last JOIN own USING (rank) JOIN taken USING (rank)
GROUP BY rank HAVING times >= $often * any_value(of)
ORDER BY times DESC, sum(behind_ns) DESC, rank
"""
_DIFFERENCES = """
WITH slow AS (SELECT name, place, count, self_ns FROM operators WHERE rank = $slowest),
    middle AS (SELECT name, place, count, self_ns FROM operators WHERE rank = $median)
SELECT name, place, coalesce(slow.count, 0), coalesce(middle.count, 0),
    coalesce(slow.self_ns, 0), coalesce(middle.self_ns, 0)
FROM slow FULL JOIN middle USING (name, place)
ORDER BY abs(coalesce(slow.self_ns, 0) - coalesce(middle.self_ns, 0)) DESC, name
"""
OUTSIDE, DEVICE_IDLE, LOADING = "(outside of operators)", "(device idle)", "(data loading)"
"""Rows next to operators: time of a step that no operator has."""
_WITHOUT_OPERATORS = """
SELECT rank, avg(free_ns), avg(data_loading_ns), bool_and(device = 'host') FROM steps
WHERE rank IN ($slowest, $median) GROUP BY rank
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
"""Numbers of collectives, each counted once for all of its ranks."""
_MEANS = """
SELECT rank, avg(length_ns), avg(computing_ns), avg(communication_ns), avg(overlapped_ns)
FROM steps GROUP BY rank ORDER BY rank
"""
_LENGTHS = """
SELECT rank, list(step ORDER BY step), list(length_ns ORDER BY step), list(kind ORDER BY step),
    list(nullif(tokens, -1) ORDER BY step), sum(length_ns), max(last_ns) - min(first_ns),
    max(last_ns) - max(begin_ns + length_ns)
FROM (
    SELECT rank, step, max(length_ns) AS length_ns, any_value(begin_ns) AS begin_ns,
        min(begin_ns + preparing_ns) AS first_ns,
        max(begin_ns + preparing_ns + stage_ns) AS last_ns,
        any_value(kind) AS kind, max(tokens) AS tokens
    FROM steps WHERE step >= 0 GROUP BY rank, step
) GROUP BY rank ORDER BY rank
"""
TRAFFIC_HEADER = (
    "Process Group", "Ranks", "Collective", "Size(MB)", "Count", "Waiting(us)", "Moving(us)",
    "Algorithm Bandwidth(GB/s)", "Bus Bandwidth(GB/s)",
)  # fmt: skip
LINKS_HEADER = (
    "From", "To", "By", "Count", "Size(MB)", "Waiting(us)", "Moving(us)", "Bandwidth(GB/s)",
    "Bandwidth of 1 MB and more(GB/s)",
)  # fmt: skip
SLOW = 0.5
"""Share of the median bandwidth of links below which a link is slow."""
FEWEST = 3
"""Links that are needed to say which one is slower than the others."""

_MOVED = """
CREATE OR REPLACE TEMP TABLE moved AS
WITH aligned AS (
    SELECT s.*, begin_ns - ahead_ns AS came_ns, end_ns - ahead_ns AS went_ns
    FROM shared s JOIN clocks USING ("group", rank)
), last AS (
    SELECT *, max(came_ns) OVER (PARTITION BY "group", place) AS last_ns FROM aligned
)
SELECT *, greatest(0, least(last_ns, went_ns) - came_ns) AS waiting_ns,
    went_ns - greatest(came_ns, least(last_ns, went_ns)) AS moving_ns
FROM last
"""
"""The time of each rank in each collective: waiting and moving."""
_OPERATIONS = """
CREATE OR REPLACE TEMP TABLE operations AS
SELECT "group", place, count(*) AS ranks, max(sender) AS sender, max(receiver) AS receiver,
    CASE WHEN max(sender) >= 0 THEN 'send and receive' ELSE max(kind) END AS kind,
    max(size) AS size, max(factor) AS factor, max(members) AS members,
    min(rank) AS lowest, max(rank) AS highest,
    avg(waiting_ns) AS waiting_ns, quantile_disc(moving_ns, 0.5) AS moving_ns
FROM moved GROUP BY "group", place
"""
"""Each collective once, with the mean wait of its ranks, and the median time of moving."""
_TRAFFIC = """
SELECT "group", any_value(ranks), kind, size, count(*), sum(waiting_ns)::BIGINT,
    sum(moving_ns)::BIGINT, any_value(factor)
FROM operations GROUP BY "group", kind, size ORDER BY sum(waiting_ns + moving_ns) DESC, "group"
"""
_LINKS = """
WITH ends AS (
    SELECT *, sender >= 0 AS one_way, CASE WHEN sender >= 0 THEN sender ELSE lowest END AS source,
        CASE WHEN sender >= 0 THEN receiver ELSE highest END AS target, size * factor AS bytes
    FROM operations
    WHERE ranks = 2 AND size > 0 AND factor > 0 AND moving_ns > 0 AND (sender >= 0 OR members = 2)
)
SELECT source, target, one_way, count(*), sum(bytes), sum(waiting_ns)::BIGINT,
    sum(moving_ns)::BIGINT, coalesce(sum(bytes) FILTER (size >= $large), 0),
    coalesce(sum(moving_ns) FILTER (size >= $large), 0)::BIGINT
FROM ends GROUP BY source, target, one_way ORDER BY source, target, one_way
"""


class Ranks:
    """Several ranks of one window.

    Args:
        files: The files of each table of :data:`RANK_TABLES`, one for each capture, newest last.
        requested: Maps the job's number of ranks to the ranks that were requested; by default all.

    Attributes:
        older: The number of captures that are left out, as newer ones have the same ranks.
        superseded: Their indices among the files, without those of traces without steps.

    Raises:
        CaptureError: A table cannot be read, or two captures were recorded at the same time and
            neither says its rank.
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
            for name in RANK_TABLES:  # an empty trace has no rows, so no rank
                chosen = checked_names([files[name][place] for place in newest or [0]])
                self._database.read_parquet(patterns(chosen)).create(name)
            match(self._database)
        except (duckdb.Error, OSError) as error:
            text = "the tables of ranks cannot be read; run dynprof analyse again"
            raise CaptureError(f"{text}: {describe(error)}") from error
        self.older = len(files[STEPS]) - len(newest)
        self._database.execute(_BEHIND)
        self._database.execute(_LAST, {"late": LATE_NS})
        self._database.execute(_OWN)

    def _newest(self, files: Sequence[Path]) -> dict[int, int]:
        """Return the index of the last file of each rank."""
        names = checked_names(files)
        self._database.read_parquet(patterns(names), filename=True).create_view("files")
        found = self._rows(_FILES)
        if together := _recorded_together(found):
            first, second = together
            raise CaptureError(
                f"the captures {first} and {second} were recorded at the same time, and neither "
                "says its rank; rename the files to rank-0.json, rank-1.json and so on, or give "
                "the path of one of them"
            )
        places = {name: place for place, name in enumerate(names)}
        ranks = sorted((places[name], rank) for rank, name, *_ in found)
        newest = dict(sorted((rank, place) for place, rank in ranks))
        self.superseded = {place for place, _ in ranks} - set(newest.values())
        return newest

    def __len__(self) -> int:
        return len(self._places)

    def means(self) -> list[RankMean]:
        """Return the mean step of each rank."""
        return [RankMean(*row) for row in self._rows(_MEANS)]

    def stragglers(self) -> list[Straggler]:
        """Return the ranks that others often wait for, the most frequent one first."""
        return [one for one in self._late_ranks() if not one.is_held_up]

    def _late_ranks(self) -> list[Straggler]:
        return [Straggler(*map(round, row)) for row in self._rows(_STRAGGLERS, {"often": OFTEN})]

    def words(self) -> list[str]:
        """Return sentences about the ranks: which keep others waiting, and which are missing."""
        fitting, strayed, total = self._rows(_MATCHED)[0]
        said = [str(one) for one in self.stragglers()[:MAX_IN_VERDICT]]
        said = said or [str(one) for one in self._late_ranks()[:MAX_IN_VERDICT]]
        said += self.bandwidth.words()[:MAX_IN_VERDICT]
        if not said and fitting:
            said = ["no rank keeps the others waiting"]
        said += filter(None, [self.unmatched()])
        if strayed:
            said.append(
                f"{strayed:,} of {counted(total, 'collective')} did not end together, as if a "
                "clock was set in between; the waits in them are unknown"
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

    def unmatched(self) -> str:
        """Return how many collectives cannot be compared; empty if all can."""
        fitting, strayed, total = self._rows(_MATCHED)[0]
        if not total:
            return "no collective was recorded, so it is unknown which rank waits for which"
        if fitting + strayed == total:
            return ""
        return (
            f"{fitting + strayed:,} of {counted(total, 'collective')} could be matched between all "
            "ranks of their group, from the first on; the waits in the others are unknown"
        )

    def lateness(self) -> dict[str, Any]:
        """Return columns with a row for each collective of each rank that can be compared.

        ``rank`` and ``id`` are those of the table of collectives. ``late_ns`` is how long after the
        median rank it came. ``is_last`` is whether it came last, and late.
        """
        return self._database.execute(_LATENESS).fetchnumpy()

    def slowest(self) -> int:
        """Return the rank that others wait for most, else the one with the most own work."""
        if found := self.stragglers():
            return found[0].rank
        query = "SELECT rank FROM own ORDER BY own_ns DESC, rank LIMIT 1"
        return int(self._rows(query)[0][0])

    def slowest_and_why(self) -> str:
        """Return :meth:`slowest` in words, and why it is that rank."""
        rank = self.slowest()
        if self.stragglers():
            return f"rank {rank}, which others wait for"
        own = dict(self._rows("SELECT rank, own_ns FROM own ORDER BY own_ns"))
        why = f"rank {rank}, which has the most work of its own: {ms(own.pop(rank))} a step"
        if not own:
            return why
        median = [*own.values()][(len(own) - 1) // 2]
        others = "the other rank has" if len(own) == 1 else "the median of the others is"
        return f"{why}; {others} {ms(median)}"

    def file_index(self, rank: int) -> int:
        """Return the index of the file that holds a rank."""
        return self._places[rank]

    def median(self) -> int:
        """Return the median rank of all but :meth:`slowest`, by its own work."""
        slowest = self.slowest()
        query = "SELECT rank FROM own WHERE rank <> $slowest ORDER BY own_ns, rank"
        ranked = [row[0] for row in self._rows(query, {"slowest": slowest})] or [slowest]
        return int(ranked[(len(ranked) - 1) // 2])

    def operator_differences(
        self, slowest: int, median: int
    ) -> list[tuple[str, str, float, float, float, float]]:
        """Return names and places of operators, with counts and self ns in a step of two ranks.

        Time outside of operators, or in which the device is idle, has a row too, and so has data
        loading. The largest difference comes first.
        """
        both: dict[str, float] = {"slowest": slowest, "median": median}
        found = self._rows(_DIFFERENCES, both)
        times = {rank: rest for rank, *rest in self._rows(_WITHOUT_OPERATORS, both)}
        (free, loading, on_host), (other_free, other_loading, _) = times[slowest], times[median]
        found.append((OUTSIDE if on_host else DEVICE_IDLE, "host", 1, 1, free, other_free))
        if loading or other_loading:
            found.append((LOADING, "host", 1, 1, loading, other_loading))
        return sorted(found, key=lambda row: -abs(row[4] - row[5]))

    def tables(self) -> Tables:
        """Return tables with a row for each step of each rank, and each operator of two ranks."""
        return {
            "ranks.csv": (STEPS_HEADER, self._step_rows()),
            "slowest_rank.csv": (OPERATORS_HEADER, self._operator_rows()),
            **self.bandwidth.tables(),
        }

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query over the tables of all ranks."""
        return self._rows(query)

    @cached_property
    def bandwidth(self) -> Bandwidth:
        """The bandwidth between the ranks."""
        return Bandwidth(self._database)

    def clocks(self) -> dict[int, tuple[int, int]]:
        """Return, by rank, the first rank on the same clock, and the ns by which it is ahead.

        Clocks are aligned by hosts, and by collectives between hosts. A rank that shares nothing
        with another one is left out.
        """
        return offsets(self._database)

    def spans(self) -> dict[int, tuple[int, int]]:
        """Return, by rank, when its steps began and ended, in ns since the epoch on its clock."""
        rows = self._rows(
            "SELECT rank, min(begin_ns), max(begin_ns + length_ns) FROM steps GROUP BY rank"
        )
        return {rank: (begin, end) for rank, begin, end in rows}

    def hosts(self) -> dict[int, int]:
        """Return the first rank of each rank's host; a host without a name has one rank."""
        return hosts(self._database)

    def uncertainty_ns(self) -> int:
        """Return the uncertainty of the offsets of clocks, in ns."""
        return uncertainty_ns(self._database)

    def arrivals_among(self, among: Sequence[int]) -> Callable[[int], list[Arrival]]:
        """Return a function that maps a rank to the collectives it shares with ``among``."""
        create_arrivals(self._database, among)
        return lambda rank: arrivals(self._database, rank)

    def different_steps(self) -> list[str]:
        """Return a sentence on which ranks recorded which steps, if they differ."""
        return different_steps(self._database)

    def numbers(self) -> list[int]:
        """Return the numbers of all ranks."""
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
                us(round(self_ns)),
                us(round(other)),
                us(round(self_ns - other)),
            )
            for name, place, more, less, self_ns, other in self.operator_differences(
                self.slowest(), self.median()
            )
        ]

    def _rows(self, query: str, values: dict[str, float] | None = None) -> list[tuple[Any, ...]]:
        return self._database.execute(query, values).fetchall()


def _recorded_together(files: Sequence[tuple[int, str, bool, int, int]]) -> tuple[str, str] | None:
    """Return the names of two captures that cannot be of one rank, though nothing tells theirs.

    Args:
        files: The rows of ``_FILES``.
    """
    for (rank, first, known, _, end), (other, second, also_known, begin, _) in pairwise(files):
        names = [Path(file).parent.parent.name for file in (first, second)]
        packed = len({name.removesuffix(".gz") for name in names}) < len(names)
        if rank == other and not (known or also_known or packed) and begin < end:
            return names[0], names[1]
    return None


def checked_names(files: Sequence[Path]) -> list[str]:
    """Return the names of files for DuckDB, after checking them: DuckDB would block on a FIFO.

    Raises:
        OSError: One is not a regular file, or cannot be read.
    """
    for path in files:
        open_inside(path).close()
    return [str(path) for path in files]


def patterns(names: Sequence[str]) -> list[str]:
    """Return patterns that match only these files: to DuckDB ``r[1]`` would mean ``r1``."""
    return [re.sub(r"[\[*?]", r"[\g<0>]", name) for name in names]


def different_steps(database: DuckDBPyConnection) -> list[str]:
    """Return a sentence on which ranks recorded which steps, if they differ."""
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
    shown = ", ".join(map(str, ranks[:_MAX_LISTED_RANKS]))
    more = f" and {len(ranks) - _MAX_LISTED_RANKS:,} more" if len(ranks) > _MAX_LISTED_RANKS else ""
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {shown}{more}"


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for.

    Attributes:
        rank: Its number.
        last: The number of collectives to which it came last, and late.
        of: The number of its collectives that can be compared.
        behind_ns: The median time in ns by which it came after the median rank in those.
        left_late_ns: The same of the end of the collectives before those.
        own_ns: Its mean step time without communication that nothing overlaps.
        others_ns: The median of the same of the other ranks.
        ranks: The number of compared ranks, with this one.
    """

    rank: int
    last: int
    of: int
    behind_ns: int
    left_late_ns: int
    own_ns: int
    others_ns: int
    ranks: int

    @property
    def is_held_up(self) -> bool:
        """Whether it comes late because its data arrives late, not because it works longer."""
        return self.left_late_ns > HELD_UP * self.behind_ns

    @property
    def others(self) -> str:
        """The ranks that :attr:`others_ns` is of, in words."""
        return "the other rank's" if self.ranks == 2 else "the median of the others"

    def __str__(self) -> str:
        which = "other" if self.ranks == 2 else "median"
        comes = (
            f"rank {self.rank} comes last to {self.last:,} of {counted(self.of, 'collective')}, "
            f"{self.behind_ns / 1e6:.1f} ms after the {which} rank"
        )
        if self.is_held_up:
            return (
                f"{comes}, but leaves the collective before {self.left_late_ns / 1e6:.1f} ms after "
                "it: look at the link between the ranks; no rank keeps the others waiting"
            )
        return (
            f"{comes}; its own work averages {self.own_ns / 1e6:.1f} ms a step, {self.others} "
            f"{self.others_ns / 1e6:.1f} ms"
        )


@dataclass(frozen=True)
class RankMean:
    """The mean step of one rank; times in ns.

    Attributes:
        rank: Its number.
        length: The time of a step.
        computing: The time in which kernels, or operators of the host, computed.
        communication: The time in which collectives ran.
        overlapped: The time in which both did.
    """

    rank: int
    length: float
    computing: float
    communication: float
    overlapped: float

    @property
    def waiting(self) -> float:
        """Communication that nothing overlaps."""
        return self.communication - self.overlapped


def long_steps(database: DuckDBPyConnection) -> list[str]:
    """Return the outliers of all ranks in one sentence, each step once; empty if there are none.

    A rank whose device is far behind has no outliers, as in its own verdict.
    """
    found: dict[tuple[int, str], list[tuple[float, int, int]]] = {}
    for row in database.execute(_LENGTHS).fetchall():
        rank, steps, lengths, kinds, tokens, whole, on_device, late = row
        if is_behind(on_device, late, whole):
            continue
        for place in outliers_by_kind(lengths, kinds, tokens):
            alike = zip(lengths, kinds, strict=True)
            median = median_of([length for length, kind in alike if kind == kinds[place]])
            took = (lengths[place] / median, lengths[place], rank)
            found.setdefault((steps[place], kinds[place]), []).append(took)
    worst = sorted(found.items(), key=lambda one: max(one[1]), reverse=True)
    said = [_said(step, kind, ranks) for (step, kind), ranks in worst[:MAX_NAMED]]
    if rest := worst[MAX_NAMED:]:
        noun = ITERATION if any(kind for (_, kind), _ in rest) else STEP
        were = (f"more {noun} was as unusual", f"more {noun}s were as unusual")
        said.append(counted(len(rest), *were))
    return ["; ".join(said)] if said else []


def _said(step: int, kind: str, ranks: list[tuple[float, int, int]]) -> str:
    noun, nouns = (ITERATION, f"{kind} {ITERATION}s") if kind else (STEP, f"{STEP}s")
    times, longest, _ = max(ranks)
    if len(ranks) == 1:
        where, most, whose = listed_ranks([ranks[0][2]]), "", "its"
    else:
        where, most, whose = listed_ranks([rank for *_, rank in ranks]), "up to ", "their"
        if len(ranks) > _MAX_LISTED_RANKS:
            where = counted(len(ranks), "rank")
    took = f"{noun} {step} took {most}{ms(longest)} on {where}"
    ratio = number(times)
    return f"{took}, {most}{ratio} times the median of {whose} {nouns}"


@dataclass(frozen=True)
class GroupTraffic:
    """All collectives of one kind and size in one process group; times in ns.

    Attributes:
        group: The group's name in the trace.
        ranks: The number of ranks that took part.
        kind: The kind of collective; empty if unknown.
        size: Its bytes; -1 if unknown.
        count: The number of collectives.
        waiting: The mean wait of a rank for the last one, summed over all of them.
        moving: The time of moving data, summed over all of them.
        factor: The ratio of bus bandwidth to algorithm bandwidth; 0 if unknown.
    """

    group: str
    ranks: int
    kind: str
    size: int
    count: int
    waiting: int
    moving: int
    factor: float

    @property
    def algorithm(self) -> float | None:
        """The algorithm bandwidth while data moves, in GB/s; None if unknown."""
        known = self.size > 0 and self.moving > 0
        return self.size * self.count / self.moving if known else None

    @property
    def bus(self) -> float | None:
        """The bus bandwidth likewise."""
        return self.algorithm * self.factor if self.algorithm and self.factor else None


@dataclass(frozen=True)
class Link:
    """The traffic between two ranks; times in ns.

    Attributes:
        source: The rank that sent, or the lower one.
        target: The rank that received, or the higher one.
        one_way: Whether it is messages from one to the other, else collectives of the two.
        count: The number of messages or collectives.
        size: The bytes that moved, in each direction that was used.
        waiting: The wait of one rank for the other, as the mean of both.
        moving: The time of moving.
        large_size: The bytes of those of at least :data:`LARGE` bytes.
        large_moving: The time of moving those.
    """

    source: int
    target: int
    one_way: bool
    count: int
    size: float
    waiting: int
    moving: int
    large_size: float
    large_moving: int

    @property
    def bandwidth(self) -> float:
        """The bandwidth in GB/s."""
        return self.size / self.moving

    @property
    def large_bandwidth(self) -> float | None:
        """The bandwidth of the large ones only; small ones show the latency."""
        return self.large_size / self.large_moving if self.large_moving else None

    def __str__(self) -> str:
        if self.one_way:
            return f"from rank {self.source} to rank {self.target}"
        return f"between ranks {self.source} and {self.target}"


class Bandwidth:
    """The bandwidth between the ranks of a window.

    Args:
        database: The database with their matched collectives.

    Attributes:
        traffic: The traffic by group, kind and size, the most time first.
        links: The traffic by pair of ranks.
    """

    def __init__(self, database: DuckDBPyConnection) -> None:
        database.execute(_MOVED)
        database.execute(_OPERATIONS)
        self.traffic = [GroupTraffic(*row) for row in database.execute(_TRAFFIC).fetchall()]
        found = database.execute(_LINKS, {"large": LARGE}).fetchall()
        self.links = [Link(*row) for row in found]

    def words(self) -> list[str]:
        """Return the slow links in sentences, or the rank whose links are all slow."""
        rated = {link: speed for link in self.links if (speed := link.large_bandwidth)}
        if len(rated) < FEWEST:
            return []
        usual = median(rated.values())
        slow = sorted((k for k, v in rated.items() if v < SLOW * usual), key=rated.__getitem__)
        said = []
        for rank in _slow_everywhere(slow, rated):
            own = [link for link in slow if rank in (link.source, link.target)]
            slow = [link for link in slow if link not in own]
            fastest = max(rated[link] for link in own)
            said.append(
                f"rank {rank} moves data slowly over all of its {counted(len(own), 'link')}: at "
                f"most {fastest:.3g} GB/s, the median link has {usual:.3g} GB/s. The cause is the "
                "rank, its device or its machine, not a single link"
            )
        return said + [
            f"the link {link} is slow: {rated[link]:.3g} GB/s while data moves, the median link "
            f"has {usual:.3g} GB/s; waiting for a late rank is not counted"
            for link in slow
        ]

    def tables(self) -> Tables:
        """Return a row for each kind of collective, and for each link."""
        return {
            "collective_bandwidth.csv": (TRAFFIC_HEADER, map(_traffic_row, self.traffic)),
            "links.csv": (LINKS_HEADER, map(_link_row, self.links)),
        }


def _slow_everywhere(slow: Sequence[Link], rated: Collection[Link]) -> list[int]:
    """Return the ranks that have links to several others, all of which are slow."""
    found = []
    for rank in sorted({end for link in slow for end in (link.source, link.target)}):
        own = [link for link in rated if rank in (link.source, link.target)]
        others = {end for link in own for end in (link.source, link.target)} - {rank}
        if len(others) > 1 and set(own) <= set(slow) and len(own) < len(rated):
            found.append(rank)
    return found


def _traffic_row(row: GroupTraffic) -> Row:
    return (
        row.group,
        row.ranks,
        row.kind or UNKNOWN_TIME,
        megabytes(row.size),
        row.count,
        us(row.waiting),
        us(row.moving),
        rate(row.algorithm),
        rate(row.bus),
    )


def _link_row(row: Link) -> Row:
    return (
        row.source,
        row.target,
        "send and receive" if row.one_way else "group of two",
        row.count,
        megabytes(round(row.size)),
        us(row.waiting),
        us(row.moving),
        rate(row.bandwidth),
        rate(row.large_bandwidth),
    )
