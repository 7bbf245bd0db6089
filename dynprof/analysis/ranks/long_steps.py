"""Steps that took far longer than the others of their rank, and on which ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.timeline.breakdown import BEHIND_RATIO, MAX_NAMED, ms
from dynprof.analysis.measures.timeline.steps import median_of, outliers
from dynprof.runtime.plural import counted, listed_ranks, number

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MOST_RANKS = 8
"""Ranks that are listed; more are only counted."""
_LENGTHS = """
SELECT rank, list(step ORDER BY step), list(length_ns ORDER BY step), sum(length_ns), sum(stage_ns)
FROM (
    SELECT rank, step, max(length_ns) AS length_ns, max(stage_ns) AS stage_ns
    FROM steps WHERE step >= 0 GROUP BY rank, step
) GROUP BY rank ORDER BY rank
"""


def long_steps(database: DuckDBPyConnection) -> list[str]:
    """Return the outliers of all ranks in one sentence, each step once; empty if there are none.

    A rank whose device is far behind has no outliers, as in its own verdict.
    """
    found: dict[int, list[tuple[float, int, int]]] = {}
    for rank, steps, lengths, whole, on_device in database.execute(_LENGTHS).fetchall():
        if on_device > BEHIND_RATIO * whole:
            continue
        median = median_of(lengths)
        for place in outliers(lengths):
            took = (lengths[place] / median, lengths[place], rank)
            found.setdefault(steps[place], []).append(took)
    worst = sorted(found.items(), key=lambda one: max(one[1]), reverse=True)
    said = [_said(step, ranks) for step, ranks in worst[:MAX_NAMED]]
    if rest := worst[MAX_NAMED:]:
        said.append(counted(len(rest), "more step was as unusual", "more steps were as unusual"))
    return ["; ".join(said)] if said else []


def _said(step: int, ranks: list[tuple[float, int, int]]) -> str:
    times, longest, _ = max(ranks)
    if len(ranks) == 1:
        who, most, whose = listed_ranks([ranks[0][2]]), "", "its"
    else:
        who, most, whose = listed_ranks([rank for *_, rank in ranks]), "up to ", "their"
        if len(ranks) > _MOST_RANKS:
            who = counted(len(ranks), "rank")
    took = f"step {step} took {most}{ms(longest)} on {who}"
    ratio = number(times)
    return f"{took}, {most}{ratio} times the median of {whose} steps"
