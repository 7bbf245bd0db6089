"""Processes that nothing is to be begun in: their threads are greenlets, or they do not train."""

from __future__ import annotations

from dynprof.process.greenlets import why_no_threads
from dynprof.process.rank import why_no_rank


def why_not_here(rank: int | None = None) -> str | None:
    """Say why this process cannot, or shall not, be watched; None where it can.

    Args:
        rank: The rank that whoever begins names; without it, a worker of a loader is no rank.
    """
    if text := why_no_threads():
        return text
    reason = why_no_rank() if rank is None else None
    return f"{reason}; pass rank= if it trains" if reason else reason
