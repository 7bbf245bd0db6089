"""What the page says of kernels that one could do for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.sequence_sources import in_a_row, sources

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

MOST_SHOWN = 25


def sequences_section(measured: MeasuredTrace) -> dict[str, Any]:
    """Return operators, place in the code, count, kernels in each, and times in ms."""
    chosen = measured.sequences[:MOST_SHOWN]
    rows = [
        [
            in_a_row(source.operators, 8),
            source.line,
            one.count,
            len(one.names),
            int(one.busy_ns.sum()) / 1e6,
            int(one.gaps_ns.sum()) / 1e6,
            one.saved_ns / 1e6,
        ]
        for one, source in zip(chosen, sources(measured, chosen), strict=True)
    ]
    return {"rows": rows, "count": len(measured.sequences)}
