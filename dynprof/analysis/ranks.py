"""The ranks of one window side by side: whose steps take how long, and who keeps whom waiting.

All ranks of a collective leave it together, so that its ends tell how far their clocks are apart;
its begins, on one clock, tell who came last. Reads the Parquet tables of each rank, and holds no
trace: thousands of ranks fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynprof.analysis.parquet import RANK_TABLES, STEPS, connection
from dynprof.analysis.tables import us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dynprof.analysis.tables import Tables

STEPS_HEADER = (
    "Rank", "Step", "Device_id", "Step Time(us)", "Computing(us)", "Communication(us)",
    "Overlapped(us)", "Free(us)", "Data Loading(us)",
)  # fmt: skip
OPERATORS_HEADER = (
    "Name", "Where", "Count of Slowest", "Count of Median", "Own Time of Slowest(us)",
    "Own Time of Median(us)", "Difference(us)",
)  # fmt: skip
LATE_NS = 1_000_000
"""Who comes less than this after the median is not called late: clocks and threads scatter."""

_SHARED = """
CREATE TEMP TABLE shared AS
WITH agreeing AS (
    SELECT place, count(*) = (SELECT count(DISTINCT rank) FROM steps)
        AND count(DISTINCT name) = 1 AS alike
    FROM collectives GROUP BY place
)
SELECT * FROM collectives WHERE place < coalesce(
    (SELECT min(place) FROM agreeing WHERE NOT alike), (SELECT max(place) + 1 FROM agreeing))
"""
"""The collectives, from the first on, that are the same on every rank."""
_CLOCKS = """
CREATE TEMP TABLE clocks AS
SELECT one.rank, quantile_disc(one.end_ns - first.end_ns, 0.5) AS ahead_ns
FROM shared one JOIN shared first ON one.place = first.place
WHERE first.rank = (SELECT min(rank) FROM shared) GROUP BY one.rank
"""
"""How far each rank's clock is ahead of the first one's."""
_LAST = """
CREATE TEMP TABLE last AS
WITH arrivals AS (
    SELECT place, rank, begin_ns - ahead_ns AS came_ns FROM shared JOIN clocks USING (rank)
), behind AS (
    SELECT place, rank, came_ns - quantile_disc(came_ns, 0.5) OVER (PARTITION BY place) AS behind_ns
    FROM arrivals
)
SELECT place, arg_max(rank, behind_ns) AS rank, max(behind_ns) AS behind_ns
FROM behind GROUP BY place HAVING max(behind_ns) > $late
"""
"""Who came last to each collective, and by how much after the median rank."""
_OWN = """
CREATE TEMP TABLE own AS
SELECT rank, avg(length_ns - communication_ns + overlapped_ns) AS own_ns FROM steps GROUP BY rank
"""
"""The mean time of a step that each rank does not spend in collectives alone."""
_STRAGGLERS = """
SELECT rank, count(*) AS times, (SELECT count(DISTINCT place) FROM shared),
    quantile_disc(behind_ns, 0.5), any_value(own_ns), (SELECT quantile_disc(own_ns, 0.5) FROM own)
FROM last JOIN own USING (rank) GROUP BY rank ORDER BY times DESC, rank
"""
_BESIDE = """
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
_MEANS = """
SELECT rank, any_value(device), count(*), avg(length_ns), avg(computing_ns), avg(communication_ns),
    avg(overlapped_ns), avg(free_ns), avg(data_loading_ns)
FROM steps GROUP BY rank ORDER BY rank
"""


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for.

    Attributes:
        rank: Its number.
        last: In how many collectives it came last, and late.
        of: How many collectives all ranks took part in.
        behind_ns: By how much it came after the median rank, in the middle of those, in ns.
        own_ns: Its mean step time without communication that nothing hides.
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


@dataclass(frozen=True)
class RankMean:
    """The mean step of one rank; times in ns.

    Attributes:
        rank: Its number.
        device: The device, or ``host``.
        steps: How many.
        length: How long they took.
        computing: For how long kernels, or operators of the host, computed.
        communication: For how long collectives ran.
        overlapped: For how long both did.
        free: For how long neither did.
        data_loading: For how long the host waited for data.
    """

    rank: int
    device: str
    steps: int
    length: float
    computing: float
    communication: float
    overlapped: float
    free: float
    data_loading: float

    @property
    def waiting(self) -> float:
        """Communication that nothing hides."""
        return self.communication - self.overlapped


class Ranks:
    """Several ranks of one window.

    Args:
        files: Where each table of :data:`RANK_TABLES` lies, one file a rank.
    """

    def __init__(self, files: Mapping[str, Sequence[Path]]) -> None:
        self._database = connection()
        self._files = [str(path) for path in files[STEPS]]
        for name in RANK_TABLES:
            found = [str(path) for path in files[name]]
            self._database.read_parquet(found, filename=name == STEPS).create(name)
        self._database.execute(_SHARED)
        self._database.execute(_CLOCKS)
        self._database.execute(_LAST, {"late": LATE_NS})
        self._database.execute(_OWN)

    def __len__(self) -> int:
        return int(self._rows("SELECT count(DISTINCT rank) FROM steps")[0][0])

    def means(self) -> list[RankMean]:
        """Return the mean step of each rank."""
        return [RankMean(*row) for row in self._rows(_MEANS)]

    def stragglers(self) -> list[Straggler]:
        """Return the ranks that others wait for, the one that came last most often first."""
        return [Straggler(*map(round, row)) for row in self._rows(_STRAGGLERS)]

    def slowest(self) -> int:
        """Return the rank that others wait for most, else the one with the most own work."""
        found = self._rows(
            "SELECT own.rank FROM own LEFT JOIN last USING (rank) GROUP BY own.rank "
            "ORDER BY count(place) DESC, max(own_ns) DESC, own.rank LIMIT 1"
        )
        return int(found[0][0])

    def place_of(self, rank: int) -> int:
        """Return the place among the files of the one that holds a rank."""
        found = self._rows("SELECT any_value(filename) FROM steps WHERE rank = $r", {"r": rank})
        return self._files.index(found[0][0])

    def median(self) -> int:
        """Return the rank in the middle by its own work."""
        ranked = [row[0] for row in self._rows("SELECT rank FROM own ORDER BY own_ns, rank")]
        return int(ranked[(len(ranked) - 1) // 2])

    def beside(
        self, slowest: int, median: int
    ) -> list[tuple[str, str, float, float, float, float]]:
        """Return, of two ranks, names and places, counts and own ns in a step, the first's first.

        What differs most comes first.
        """
        return self._rows(_BESIDE, {"slowest": slowest, "median": median})

    def tables(self) -> Tables:
        """Return a row for each step of each rank, and for each operator of two of them."""
        return {
            "ranks.csv": (STEPS_HEADER, self._step_rows()),
            "slowest_rank.csv": (OPERATORS_HEADER, self._operator_rows()),
        }

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
            for name, place, more, less, own, other in self.beside(self.slowest(), self.median())
        ]

    def _rows(self, query: str, values: dict[str, int] | None = None) -> list[tuple[Any, ...]]:
        return self._database.execute(query, values).fetchall()
