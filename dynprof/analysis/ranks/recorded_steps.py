"""Which ranks recorded other steps than the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.plural import spanned

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MOST_NAMED = 8
_SPANNED = """
SELECT rank, min(step), max(step) FROM steps WHERE step >= 0 GROUP BY rank ORDER BY rank
"""


def steps_apart(database: DuckDBPyConnection) -> list[str]:
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
