"""``kernel_sequences.csv``: elementwise kernels that follow one another, which one could do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.efficiency.sequences import MOST
from dynprof.analysis.measures.sequence_sources import in_a_row, sources
from dynprof.analysis.output.tables import us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.output.tables import Row, Tables

KERNEL_SEQUENCES = (
    "Operators", "Source Line", "Count", "Kernels in Each", "Kernel Time(us)",
    "Gaps Between(us)", "Kernel Time Saved at Most(us)", "Kernels",
)  # fmt: skip


def sequence_tables(measured: MeasuredTrace) -> Tables:
    """Return a row for each sequence, those first that could save most; times in us."""
    return {"kernel_sequences.csv": (KERNEL_SEQUENCES, _rows(measured))}


def _rows(measured: MeasuredTrace) -> Iterator[Row]:
    chosen = measured.sequences[:MOST]
    for one, source in zip(chosen, sources(measured, chosen), strict=True):
        busy, gaps = us(int(one.busy_ns.sum())), us(int(one.gaps_ns.sum()))
        yield (
            in_a_row(source.operators),
            source.line,
            one.count,
            len(one.names),
            busy,
            gaps,
            us(one.saved_ns),
            in_a_row(one.names),
        )
