"""The bandwidth between ranks, without the wait for the last rank, and which links are slow.

A rank waits in a collective until the last one arrives; the rest of its time is moving data. A slow
rank makes others wait, but moves data as fast as they do. Over a slow link no rank arrives late,
but moving takes long.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from dynprof.analysis.measures.communication import LARGE
from dynprof.analysis.output.communication import megabytes, rate
from dynprof.analysis.output.tables import UNKNOWN_TIME, us
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from duckdb import DuckDBPyConnection

    from dynprof.analysis.output.tables import Row, Tables

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
