"""Which collectives of several ranks are the same, and how far the ranks' clocks are apart.

All ranks of a collective leave it together, so that its ends tell how far clocks are apart. They
are matched by their order in their process group, from the first step on that all ranks have; a
name alone is not enough, as all sums of a job have the same: so must be their kind and size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from duckdb import DuckDBPyConnection

FITTING_NS = 1_000_000
"""Ends that scatter by less fit together; also those that scatter by a part of their length.

The length is that of who waited longest: who comes last leaves at once, on a busy machine a little
later than the others.
"""
_PART = 4

_KEPT = """
CREATE TEMP TABLE kept AS
WITH firsts AS (SELECT min(step) AS step FROM steps WHERE step >= 0 GROUP BY rank),
    began AS (SELECT max(step) AS step FROM firsts)
SELECT c.* REPLACE (row_number() OVER (PARTITION BY rank, "group" ORDER BY place) - 1 AS place)
FROM collectives c, began WHERE c.step < 0 OR began.step IS NULL OR c.step >= began.step
"""
"""The collectives from the first step on that all ranks have; their places count from there."""
_SHARED = """
CREATE TEMP TABLE shared AS
WITH members AS (
    SELECT "group", count(DISTINCT rank) AS ranks FROM kept GROUP BY "group"
), told AS (
    SELECT *,
        CASE WHEN kind IN ('send', 'receive') THEN 'message'
            WHEN starts_with(kind, 'all to all') THEN 'all to all'
            ELSE nullif(kind, '') END AS sort,
        CASE WHEN kind IN ('send', 'receive', 'broadcast', 'reduce', 'all reduce', 'all gather',
            'reduce scatter') THEN nullif(size, -1) END AS same_size
    FROM kept
), agreeing AS (
    SELECT "group", place, count(*) = any_value(ranks) AND count(DISTINCT name) = 1
        AND count(DISTINCT sort) < 2 AND count(DISTINCT same_size) < 2 AS alike
    FROM told JOIN members USING ("group") WHERE ranks > 1 GROUP BY "group", place
), prefix AS (
    SELECT "group", coalesce(min(place) FILTER (NOT alike), max(place) + 1) AS length
    FROM agreeing GROUP BY "group"
)
SELECT c.* FROM kept c JOIN prefix USING ("group") WHERE place < length
"""
"""The collectives of each process group, from its first on, that are the same on all members.

What a rank does not tell of kind and size agrees with anything. Of the other kinds each rank may
have a size of its own.
"""
_CLOCKS = """
CREATE TEMP TABLE clocks AS
WITH first AS (SELECT "group", min(rank) AS rank FROM shared GROUP BY "group"),
apart AS (
    SELECT one."group", one.rank, other.rank AS than, one.end_ns - other.end_ns AS ns,
        greatest(one.end_ns - one.begin_ns, other.end_ns - other.begin_ns) AS length_ns
    FROM first JOIN shared other USING ("group", rank)
        JOIN shared one ON one."group" = other."group" AND one.place = other.place
), middle AS (
    SELECT "group", rank, any_value(than) AS than, count(*) AS times,
        quantile_disc(ns, 0.5) AS ahead_ns, quantile_disc(length_ns, 0.5) AS length_ns
    FROM apart GROUP BY "group", rank
)
SELECT "group", rank, any_value(m.than) AS than, any_value(times) AS times,
    any_value(ahead_ns) AS ahead_ns,
    quantile_disc(abs(ns - ahead_ns), 0.5)
        <= greatest($fitting, any_value(m.length_ns) / $part) AS fits
FROM apart JOIN middle m USING ("group", rank) GROUP BY "group", rank
"""
"""How far each member's clock is ahead of that of the first one in the group."""
_UNFIT = """
DELETE FROM {table} WHERE "group" IN (SELECT "group" FROM clocks WHERE NOT fits)
"""
"""Groups in which the ends of what bears the same name and number are not those of one thing."""
_STRAYED = """
CREATE TEMP TABLE strayed AS
WITH ends AS (
    SELECT "group", place, rank, end_ns - begin_ns AS length_ns, end_ns - ahead_ns AS went_ns
    FROM shared JOIN clocks USING ("group", rank)
    WHERE NOT starts_with("group", 'from rank ')
        AND kind NOT IN ('broadcast', 'reduce', 'gather', 'scatter')
), off AS (
    SELECT *, went_ns - quantile_disc(went_ns, 0.5) OVER (PARTITION BY "group", place) AS off_ns
    FROM ends
), lasting AS (
    SELECT *, quantile_disc(off_ns, 0.5) OVER (
        PARTITION BY "group", rank ORDER BY place ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING
    ) AS lasting_ns
    FROM off
)
SELECT "group", place, count(*) AS times FROM lasting GROUP BY "group", place
HAVING max(abs(lasting_ns)) > greatest($fitting, max(length_ns) / $part)
"""
"""Collectives whose ends are apart on what is one clock for the others: a clock was set meanwhile.

It stays set, so that the ones before and after are apart as well; a thread that is late once is
none. Not messages, nor what has a root: whoever sends may leave before it has come.
"""
_WITHOUT_STRAYED = """
DELETE FROM shared USING strayed s WHERE shared."group" = s."group" AND shared.place = s.place
"""

_EDGES = """
SELECT rank, than, ahead_ns FROM clocks WHERE rank <> than
ORDER BY starts_with("group", 'from rank '), times DESC, rank, than
"""
"""The surest first: whoever sends a message may leave before it has come."""

_ARRIVALS = """
CREATE OR REPLACE TEMP TABLE arrivals AS
WITH offsets AS (SELECT unnest($ranks) AS rank, unnest($ahead) AS ahead_ns), chosen AS (
    SELECT rank, "group", place, name, begin_ns, begin_ns - ahead_ns AS came_ns
    FROM shared JOIN offsets USING (rank)
)
SELECT rank, name, begin_ns, dense_rank() OVER (ORDER BY "group", place) AS number,
    row_number() OVER (PARTITION BY "group", place ORDER BY came_ns, rank) - 1 AS before,
    count(*) OVER (PARTITION BY "group", place) AS of
FROM chosen QUALIFY of > 1
"""


class Arrival(NamedTuple):
    """When a rank came to a collective.

    Attributes:
        name: What the rank calls the collective.
        begin_ns: When it came, on its own clock, since the epoch.
        number: The same for all that met there, and for nothing else.
        before: How many came before it, on one clock.
        of: How many met.
    """

    name: str
    begin_ns: int
    number: int
    before: int
    of: int


def match(database: DuckDBPyConnection) -> None:
    """Make the tables ``kept``, ``shared``, ``clocks`` and ``strayed`` from what ranks recorded."""
    tolerance = {"fitting": FITTING_NS, "part": _PART}
    database.execute(_KEPT)
    database.execute(_SHARED)
    database.execute(_CLOCKS, tolerance)
    for table in ("shared", "clocks"):
        database.execute(_UNFIT.format(table=table))
    database.execute(_STRAYED, tolerance)
    database.execute(_WITHOUT_STRAYED)


def offsets(database: DuckDBPyConnection) -> dict[int, tuple[int, int]]:
    """Return, by rank, the first of those it meets in collectives, and how far ahead of it it is.

    In ns. A rank that meets no other one is not in it.
    """
    return joined(database.execute(_EDGES).fetchall())


def meet(database: DuckDBPyConnection, among: Sequence[int]) -> None:
    """Make the table ``arrivals``: in which order some ranks came to the collectives they share."""
    ahead = {rank: ns for rank, (_, ns) in offsets(database).items() if rank in set(among)}
    given = {"ranks": list(ahead), "ahead": list(ahead.values())}
    database.execute(_ARRIVALS, given)


def arrivals(database: DuckDBPyConnection, rank: int) -> list[Arrival]:
    """Return what that table has of a rank, in the order of its begin."""
    query = "SELECT * EXCLUDE rank FROM arrivals WHERE rank = $rank ORDER BY begin_ns, number"
    return [Arrival(*row) for row in database.execute(query, {"rank": rank}).fetchall()]


def joined(edges: Iterable[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    """Return the same, given ranks and how far their clocks are ahead of others'.

    Where several ways lead from one to the other, the edges that come first make it.
    """
    above: dict[int, tuple[int, int]] = {}

    def top(rank: int) -> tuple[int, int]:
        place, ahead = above.setdefault(rank, (rank, 0))
        while place != (higher := above[place])[0]:
            place, ahead = higher[0], ahead + higher[1]
        above[rank] = place, ahead
        return place, ahead

    for rank, than, ahead in edges:
        (one, more), (other, less) = top(rank), top(than)
        if one != other:
            above[one] = other, less + ahead - more
    found = {rank: top(rank) for rank in sorted(above)}
    first: dict[int, tuple[int, int]] = {}
    for rank, (place, ahead) in found.items():
        first.setdefault(place, (rank, ahead))
    return {
        rank: (first[place][0], ahead - first[place][1]) for rank, (place, ahead) in found.items()
    }
