"""Tables of bandwidths: copies by direction, collectives by kind and size.

The vendor has no such tables: these are next to its own. Values that a trace lacks are ``N/A``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.communication.collectives import traffic
from dynprof.analysis.measures.communication.copies import copies
from dynprof.analysis.measures.timeline.steps import HOST, HOST_NAME
from dynprof.analysis.output.tables import UNKNOWN_TIME, us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.output.tables import Row, Tables

COPY_BANDWIDTH = (
    "Device_id", "Direction", "From", "To", "Count", "Time(us)", "Size(MB)", "Bandwidth(GB/s)",
    "Count of 1 MB and more", "Bandwidth of 1 MB and more(GB/s)",
)  # fmt: skip
COLLECTIVE_BANDWIDTH = (
    "Device_id", "Collective", "Process Group", "Ranks", "Data Type", "Size(MB)", "Count",
    "Total Time(us)", "Min Time(us)", "Algorithm Bandwidth(GB/s)", "Bus Bandwidth(GB/s)",
    "Max Bus Bandwidth(GB/s)",
)  # fmt: skip


def bandwidth_tables(measured: MeasuredTrace) -> Tables:
    """Return the tables of copies and of collectives."""
    return {
        "copy_bandwidth.csv": (COPY_BANDWIDTH, _copies(measured)),
        "collective_bandwidth.csv": (COLLECTIVE_BANDWIDTH, _collectives(measured)),
    }


def rate(gigabytes: float | None) -> str:
    """Return a bandwidth as text."""
    return UNKNOWN_TIME if gigabytes is None else f"{gigabytes:.4g}"


def megabytes(size: int) -> str:
    """Return bytes in MB (10**6), as text; less than 0 means unknown."""
    return UNKNOWN_TIME if size < 0 else f"{size / 1e6:.6g}"


def _copies(measured: MeasuredTrace) -> Iterator[Row]:
    for row in copies(measured.trace):
        yield (
            row.device,
            row.direction,
            row.source or UNKNOWN_TIME,
            row.target or UNKNOWN_TIME,
            row.count,
            us(row.time),
            megabytes(row.size if row.sized else -1),
            rate(row.bandwidth),
            row.large,
            rate(row.large_bandwidth),
        )


def _collectives(measured: MeasuredTrace) -> Iterator[Row]:
    for row in traffic(measured.trace, measured.messages):
        mean = round(row.total / row.count)
        yield (
            HOST_NAME if row.device == HOST else row.device,
            row.message.kind or UNKNOWN_TIME,
            row.group,
            row.message.members if row.message.members > 0 else UNKNOWN_TIME,
            row.message.dtype or UNKNOWN_TIME,
            megabytes(row.message.size),
            row.count,
            us(row.total),
            us(row.shortest),
            rate(row.algorithm(mean)),
            rate(row.bus(mean)),
            rate(row.bus(row.shortest)),
        )
