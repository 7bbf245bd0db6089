"""Speed of copies by devices, by direction and by the kind of memory on either side."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.events import COPIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

LARGE = 1_000_000
"""Bytes from which a copy counts as large. Smaller ones take about as long as an empty copy, so
their speed says nothing about a link."""
_NAME = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")


@dataclass(frozen=True)
class Copying:
    """All copies of a device in one direction; times in ns.

    Attributes:
        device: The device's number.
        direction: Such as ``HtoD``, or the name of the copies if it contains no direction.
        source: The kind of memory they read, such as ``Pageable``; empty if unknown.
        target: The kind of memory they write; empty if unknown.
        count: Number of copies.
        time: How long they took.
        sized: Number of copies of known size.
        size: The bytes of those.
        sized_time: How long those took.
        large: Number of copies of at least :data:`LARGE` bytes.
        large_size: The bytes of those.
        large_time: How long those took.
    """

    device: int
    direction: str
    source: str
    target: str
    count: int
    time: int
    sized: int
    size: int
    sized_time: int
    large: int
    large_size: int
    large_time: int

    @property
    def bandwidth(self) -> float | None:
        """The bandwidth in GB/s; None if no size is known."""
        return self.size / self.sized_time if self.sized and self.sized_time else None

    @property
    def large_bandwidth(self) -> float | None:
        """The bandwidth of the large copies alone, which are slow only if the link is."""
        return self.large_size / self.large_time if self.large_time else None


def copies(trace: Trace) -> list[Copying]:
    """Return a row for each direction on each device, the most time first."""
    spans, chosen = trace.spans, np.flatnonzero(trace.category(COPIES))
    if not len(chosen):
        return []
    details = trace.tables["details"]
    sizes = np.array([detail.copied for detail in details], np.int64)
    directions = list(dict.fromkeys(detail.direction for detail in details))
    codes = np.array([directions.index(detail.direction) for detail in details], np.int64)
    size, length = sizes[spans["details"][chosen]], spans["length"][chosen]
    direction = codes[spans["details"][chosen]]
    keys = np.stack([spans["device"][chosen], spans["name"][chosen], direction], axis=1)
    rows, place = np.unique(keys, axis=0, return_inverse=True)
    place = place.reshape(-1)
    sized, big = size >= 0, size >= LARGE
    sums = []
    for values in (
        np.ones_like(size), length, sized, np.where(sized, size, 0), length * sized,
        big, np.where(big, size, 0), length * big,
    ):  # fmt: skip
        sums.append(np.zeros(len(rows), np.int64))
        np.add.at(sums[-1], place, values)
    found = [
        Copying(device, *_parts(trace.tables["name"][name], directions[known]), *numbers)
        for (device, name, known), *numbers in zip(
            rows.tolist(), *(s.tolist() for s in sums), strict=True
        )
    ]
    return sorted(found, key=lambda row: (-row.time, row.direction))


def _parts(name: str, direction: str) -> tuple[str, str, str]:
    match = _NAME.match(name)
    if match is None:
        return direction or name, "", ""
    return match[1], match[2] or "", match[3] or ""
