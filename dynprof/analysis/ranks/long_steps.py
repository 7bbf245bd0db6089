"""Steps that took far longer than the others of their rank, and on which ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.timeline.breakdown import ITERATION, MAX_NAMED, STEP, is_behind, ms
from dynprof.analysis.measures.timeline.steps import median_of, outliers_by_kind
from dynprof.runtime.plural import counted, listed_ranks, number

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MOST_RANKS = 8
"""Ranks that are listed; more are only counted."""
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
        who, most, whose = listed_ranks([ranks[0][2]]), "", "its"
    else:
        who, most, whose = listed_ranks([rank for *_, rank in ranks]), "up to ", "their"
        if len(ranks) > _MOST_RANKS:
            who = counted(len(ranks), "rank")
    took = f"{noun} {step} took {most}{ms(longest)} on {who}"
    ratio = number(times)
    return f"{took}, {most}{ratio} times the median of {whose} {nouns}"
