"""Each allocation of tensor memory: who made it, how large, and when it was released."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dynprof.analysis.measures.memory.memory_timeline import device_label
from dynprof.analysis.reading.categories import OPERATORS
from dynprof.analysis.reading.intervals import distinct

if TYPE_CHECKING:
    from dynprof.analysis.reading.trace import Trace


class Allocation(NamedTuple):
    """One allocation; times in ns since the trace's base time, sizes in bytes.

    Attributes:
        operator: The innermost operator that made it; empty where none did.
        size: How large.
        allocated: When.
        released: When it was released; None where it outlived the trace.
        total_then: What was allocated on the device after it was made.
        reserved_then: What the allocator had reserved then.
        total_after: What was allocated after its release; None where there was none.
        reserved_after: What was reserved then.
        device: The device, such as ``cuda:0``.
    """

    operator: str
    size: int
    allocated: int
    released: int | None
    total_then: int
    reserved_then: int
    total_after: int | None
    reserved_after: int | None
    device: str


def allocations(trace: Trace) -> list[Allocation]:
    """Return every allocation that a trace holds, in order."""
    memory = trace.memory
    columns = (
        "time", "bytes", "total", "reserved", "address", "device_type", "device_id",
    )  # fmt: skip
    events = list(zip(*(memory[name].tolist() for name in columns), strict=True))
    makers = _makers(trace)
    open_: dict[tuple[int, int, int], int] = {}
    released: dict[int, int] = {}
    made: list[int] = []
    for place, (_, size, _, _, address, kind, number) in enumerate(events):
        key = (address, kind, number)
        if size > 0:
            open_[key] = place
            made.append(place)
        elif (begun := open_.pop(key, None)) is not None:
            released[begun] = place
    rows = []
    for place in made:
        time, size, total, reserved, _, kind, number = events[place]
        end = events[released[place]] if place in released else None
        rows.append(
            Allocation(
                operator=makers[place],
                size=size,
                allocated=time,
                released=end[0] if end else None,
                total_then=total,
                reserved_then=reserved,
                total_after=end[2] if end else None,
                reserved_after=end[3] if end else None,
                device=device_label(kind, number),
            )
        )
    return rows


def _makers(trace: Trace) -> list[str]:
    """Return the name of the innermost operator at the time of each memory event."""
    spans = trace.spans
    chosen = np.flatnonzero(trace.category(OPERATORS))
    start, thread, names = spans["start"][chosen], spans["thread"][chosen], trace.tables["name"]
    starts, ends = start.tolist(), (start + spans["length"][chosen]).tolist()
    codes = spans["name"][chosen].tolist()
    result = [""] * len(trace.memory["time"])
    for number in distinct(trace.memory["thread"]).tolist():
        mine = np.flatnonzero(thread == number)
        events = np.flatnonzero(trace.memory["thread"] == number)
        times = trace.memory["time"][events].tolist()
        stack: list[int] = []
        ahead = iter(mine.tolist())
        following = next(ahead, None)
        for event, now in zip(events.tolist(), times, strict=True):
            while following is not None and starts[following] <= now:
                stack.append(following)
                following = next(ahead, None)
            while stack and ends[stack[-1]] < now:
                stack.pop()
            if stack:
                result[event] = names[codes[stack[-1]]]
    return result
