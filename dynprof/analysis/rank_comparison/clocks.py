"""Matches the collectives of several ranks, and computes how far the ranks' clocks are apart.

Ranks of one host have one clock. On it, all ranks of a collective must be in it at one moment, or
it is not the same one. Between hosts, all ranks of a collective leave it together. So its ends show
how far the clocks are apart, as precisely as the ends vary.

Collectives are matched by their order in their process group, from the first step that all ranks
have. A name is not enough, as all sums of a job share it: kind and size must agree too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from duckdb import DuckDBPyConnection

FITTING_NS = 1_000_000
"""Variation in ns below which ends fit together; a part of their length is accepted too.

The length is that of the rank that waited longest. The last rank leaves at once, on a busy machine
a little later than the others.
"""
_PART = 4
"""Divisor of the length of a collective that gives the accepted variation of its ends."""
_FEWEST = 3
"""Collectives needed to judge the variation: the ends of fewer vary little in any case."""
_FEW = 10
"""Collectives below which the variation is the largest deviation: the median may be chance."""
_WITHIN = 2
"""Uncertainty of a clock, in multiples of the variation; clocks closer than that count as one."""
_BEYOND = 4
"""Multiple of the variation by which ends must be apart to show that a clock was set."""

_HOSTS = """
CREATE TEMP TABLE hosts AS
WITH named AS (SELECT rank, any_value(host) AS host FROM steps GROUP BY rank)
SELECT rank, CASE WHEN host IN ('', 'localhost') THEN rank
    ELSE min(rank) OVER (PARTITION BY host) END AS clock
FROM named
"""
"""The rank whose clock each rank has: the first one of its host, or itself."""
_KEPT = """
CREATE TEMP TABLE kept AS
WITH firsts AS (SELECT min(step) AS step FROM steps WHERE step >= 0 GROUP BY rank),
    began AS (SELECT max(step) AS step FROM firsts)
SELECT clock, kind IN ('all reduce', 'all gather', 'reduce scatter', 'all to all') AS binds,
    c.* REPLACE (row_number() OVER (PARTITION BY rank, "group" ORDER BY place) - 1 AS place)
FROM collectives c JOIN hosts USING (rank), began
WHERE c.step < 0 OR began.step IS NULL OR c.step >= began.step
"""
"""The collectives from the first step that all ranks have; their places count from there.

A collective binds if no rank leaves before all have arrived.
"""
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
            'reduce scatter') THEN nullif(size, -1) END AS same_size,
        NOT binds OR max(begin_ns) OVER one_clock
            <= min(end_ns) OVER one_clock + $fitting AS met
    FROM kept WINDOW one_clock AS (PARTITION BY "group", place, clock)
), agreeing AS (
    SELECT "group", place, count(*) = any_value(ranks) AND count(DISTINCT name) = 1
        AND count(DISTINCT sort) < 2 AND count(DISTINCT same_size) < 2 AS alike,
        bool_and(met) AS met, min(step) AS step
    FROM told JOIN members USING ("group") WHERE ranks > 1 GROUP BY "group", place
), prefix AS (
    SELECT "group", coalesce(min(place) FILTER (NOT alike), max(place) + 1) AS length
    FROM agreeing GROUP BY "group"
), same AS (
    SELECT agreeing.* FROM agreeing JOIN prefix USING ("group") WHERE place < length
), amiss AS (
    SELECT "group", min(step) AS step FROM same WHERE NOT met GROUP BY "group"
)
SELECT c.* FROM kept c JOIN same USING ("group", place) LEFT JOIN amiss USING ("group")
WHERE amiss.step IS NULL OR same.step < amiss.step
"""
"""The collectives of each process group, from its first one, that are the same on all members.

An unknown kind or size agrees with anything. With other kinds each rank may have its own size. If
ranks on one clock do not meet in a collective, one of them lacks an earlier one, at worst the first
of that step. Then nothing from that step on is matched.
"""
_CLOCKS = """
CREATE TEMP TABLE clocks AS
WITH counts AS (
    SELECT "group", step, rank, count(*) AS times FROM kept GROUP BY "group", step, rank
), lasts AS (
    SELECT max(step) AS step FROM steps GROUP BY rank
), each_step AS (
    SELECT "group", step >= 0 AND min(times) = max(times) AND count(*) = any_value(ranks) AS alike
    FROM counts JOIN (SELECT "group", count(DISTINCT rank) AS ranks FROM kept GROUP BY "group")
        USING ("group")
    WHERE step <= (SELECT min(step) FROM lasts) GROUP BY "group", step
), stepwise AS (
    SELECT "group", bool_and(alike) AS told FROM each_step GROUP BY "group"
), ends AS (
    SELECT "group", place, clock, max(begin_ns) AS begin_ns, min(end_ns) AS end_ns,
        max(end_ns) - min(end_ns) AS spread_ns, max(end_ns - begin_ns) AS length_ns,
        bool_and(binds) AS binds
    FROM shared GROUP BY "group", place, clock
), first AS (SELECT "group", min(clock) AS clock FROM shared GROUP BY "group"
), apart AS (
    SELECT one."group", one.clock, other.clock AS than, one.end_ns - other.end_ns AS ns,
        greatest(one.length_ns, other.length_ns) AS length_ns, one.spread_ns,
        one.begin_ns - other.end_ns AS least_ns, one.end_ns - other.begin_ns AS most_ns,
        one.binds AND other.binds AS binds
    FROM first JOIN ends other USING ("group", clock)
        JOIN ends one ON one."group" = other."group" AND one.place = other.place
), middle AS (
    SELECT "group", clock, any_value(than) AS than, count(*) AS times,
        quantile_disc(ns, 0.5) AS middle_ns, quantile_disc(length_ns, 0.5) AS length_ns,
        bool_or(binds) OR quantile_disc(spread_ns, 0.5)
            <= greatest($fitting, quantile_disc(length_ns, 0.5) / $part) AS within,
        max(least_ns) FILTER (binds) <= min(most_ns) FILTER (binds) AS possible
    FROM apart GROUP BY "group", clock
), varied AS (
    SELECT "group", clock, any_value(middle) AS m, quantile_disc(abs(ns - middle_ns), 0.5) AS ns,
        CASE WHEN count(*) = 1 THEN $fitting WHEN count(*) < $few THEN max(abs(ns - middle_ns))
            ELSE quantile_disc(abs(ns - middle_ns), 0.5) END AS few_ns
    FROM apart JOIN middle USING ("group", clock) GROUP BY "group", clock
)
SELECT "group", rank, clock, m.than AS than, m.times AS times, m.middle_ns AS middle_ns,
    CASE WHEN abs(m.middle_ns) > $within * few_ns THEN m.middle_ns ELSE 0 END AS ahead_ns,
    ns AS variation_ns, CASE WHEN clock = m.than THEN 0 ELSE $within * few_ns END AS uncertainty_ns,
    m.within AND (clock = m.than
        OR m.times >= $fewest AND few_ns <= greatest($fitting, m.length_ns / $part)
        OR coalesce(told, false) AND (ns <= greatest($fitting, m.length_ns / $part)
            OR coalesce(m.possible, false))) AS fits
FROM varied LEFT JOIN stepwise USING ("group")
    JOIN (SELECT DISTINCT "group", clock, rank FROM shared) USING ("group", clock)
"""
"""How far each member's clock is ahead of the first one in the group.

Ends fit if they vary little, and are enough to show that. If all ranks began the same number in
each step, none lacks one. Then few ends are enough. They may also vary more, as on busy
machines, if there is a clock on which all ranks meet each time.
"""
_UNFIT = """
DELETE FROM {table} WHERE "group" IN (SELECT "group" FROM clocks WHERE NOT fits)
"""
"""Removes groups in which the ends with the same name and number are not of one collective."""
_STRAYED = """
CREATE TEMP TABLE strayed AS
WITH ends AS (
    SELECT "group", place, clock, max(end_ns - begin_ns) AS length_ns,
        min(end_ns) - any_value(middle_ns) AS went_ns, any_value(variation_ns) AS variation_ns
    FROM shared JOIN clocks USING ("group", rank, clock)
    WHERE NOT starts_with("group", 'from rank ')
        AND kind NOT IN ('broadcast', 'reduce', 'gather', 'scatter')
    GROUP BY "group", place, clock
), off AS (
    SELECT *, went_ns - quantile_disc(went_ns, 0.5) OVER (PARTITION BY "group", place) AS off_ns
    FROM ends
), lasting AS (
    SELECT *, quantile_disc(off_ns, 0.5) OVER (
        PARTITION BY "group", clock ORDER BY place ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING
    ) AS lasting_ns
    FROM off
)
SELECT "group", place FROM lasting GROUP BY "group", place
HAVING max(abs(lasting_ns))
    > greatest($fitting, max(length_ns) / $part, $beyond * max(variation_ns))
QUALIFY count(*) OVER (PARTITION BY "group") >= $fewest
"""
"""Collectives whose ends are apart on a clock that fits the others: a clock was set in between.

A clock stays set, so the neighbouring collectives are apart too; threads that are sometimes late
do not count. Messages and collectives with a root are excluded: a sender may leave early.
"""
_WITHOUT_STRAYED = """
DELETE FROM shared USING strayed s WHERE shared."group" = s."group" AND shared.place = s.place
"""

_EDGES = """
WITH edges AS (
    SELECT 0 AS uncertainty, 0 AS times, rank, clock AS than, 0 AS ahead_ns FROM hosts
    UNION ALL
    SELECT DISTINCT 1 + starts_with("group", 'from rank ')::INT, times, clock, than, ahead_ns
    FROM clocks
)
SELECT rank, than, ahead_ns FROM edges WHERE rank <> than
ORDER BY uncertainty, times DESC, rank, than, ahead_ns
"""
"""Pairs of clocks, the most certain first: a sender may leave before its message arrives."""
_UNCERTAINTY = "SELECT max(uncertainty_ns) FROM clocks"

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
    """The arrival of a rank at a collective.

    Attributes:
        name: The collective's name on this rank.
        begin_ns: The time of arrival since the epoch, on the rank's own clock.
        number: The number of the collective, which is the same on all ranks.
        before: The number of ranks that arrived before it, on one clock.
        of: The number of ranks that share the collective.
    """

    name: str
    begin_ns: int
    number: int
    before: int
    of: int


def match(database: DuckDBPyConnection) -> None:
    """Create the tables ``kept``, ``shared``, ``clocks`` and ``strayed``."""
    tolerance = {"fitting": FITTING_NS, "part": _PART}
    database.execute(_HOSTS)
    database.execute(_KEPT)
    database.execute(_SHARED, {"fitting": FITTING_NS})
    number = {"few": _FEW, "fewest": _FEWEST, "within": _WITHIN}
    database.execute(_CLOCKS, {**tolerance, **number})
    for table in ("shared", "clocks"):
        database.execute(_UNFIT.format(table=table))
    database.execute(_STRAYED, {**tolerance, "beyond": _BEYOND, "fewest": _FEWEST})
    database.execute(_WITHOUT_STRAYED)


def offsets(database: DuckDBPyConnection) -> dict[int, tuple[int, int]]:
    """Return the offset of each rank's clock.

    By rank, the result has the first rank that shares a clock or collectives with it. It also has
    the ns by which it is ahead of that one. A rank that shares nothing is left out.
    """
    return join_clocks(database.execute(_EDGES).fetchall())


def uncertainty_ns(database: DuckDBPyConnection) -> int:
    """Return the uncertainty of the offsets of clocks in ns, from the variation of the ends."""
    return int(database.execute(_UNCERTAINTY).fetchall()[0][0] or 0)


def hosts(database: DuckDBPyConnection) -> dict[int, int]:
    """Return the first rank of each rank's host; a host without a name has one rank."""
    return dict(database.execute("SELECT rank, clock FROM hosts ORDER BY rank").fetchall())


def create_arrivals(database: DuckDBPyConnection, among: Sequence[int]) -> None:
    """Create the table ``arrivals``: the order in which some ranks reach their collectives."""
    ahead = {rank: ns for rank, (_, ns) in offsets(database).items() if rank in set(among)}
    given = {"ranks": list(ahead), "ahead": list(ahead.values())}
    database.execute(_ARRIVALS, given)


def arrivals(database: DuckDBPyConnection, rank: int) -> list[Arrival]:
    """Return the arrivals of a rank from that table, by time."""
    query = "SELECT * EXCLUDE rank FROM arrivals WHERE rank = $rank ORDER BY begin_ns, number"
    return [Arrival(*row) for row in database.execute(query, {"rank": rank}).fetchall()]


def join_clocks(edges: Iterable[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    """Return the same from pairs of ranks, and how far the first clock is ahead of the second.

    If several paths lead from one rank to another, the first edges decide.
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
