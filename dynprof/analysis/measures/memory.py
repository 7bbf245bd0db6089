"""Tensor memory: each allocation with its operator and its release, and the amount over time.

Copies by devices are not counted here.
"""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dynprof.analysis.reading.events import OPERATORS
from dynprof.analysis.reading.spans import distinct
from dynprof.runtime.safe_write import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from dynprof.analysis.reading.trace import Trace

_DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 20: "npu"}
"""Torch's numbers of device types; an NPU is its PrivateUse1."""
_KNOWN = {
    True: "Counted from the start of the recording; earlier allocations are not included.",
    False: "As reported by the device's allocator.",
}
"""What the values of a drawing mean, by whether they are of the CPU."""
_WIDTH, _HEIGHT = 1000, 240
"""Size of a drawing, in pixels."""

Timeline = dict[str, tuple["NDArray[np.int64]", "NDArray[np.int64]"]]


def device_label(kind: int, number: int) -> str:
    """Return torch's name of a device, such as ``cuda:0``."""
    name = _DEVICES.get(kind, f"device type {kind}")
    return name if number < 0 else f"{name}:{number}"


def memory_timeline(trace: Trace) -> Timeline:
    """Return by device the times in ns since the first event, and the bytes allocated then."""
    memory, found = trace.memory, Timeline()
    if not len(memory["time"]):
        return found
    begin = memory["time"][0]
    devices = np.stack([memory["device_type"], memory["device_id"]])
    for kind, number in np.unique(devices, axis=1).T.tolist():
        here = (devices[0] == kind) & (devices[1] == number)
        found[device_label(kind, number)] = memory["time"][here] - begin, memory["total"][here]
    return found


def write_memory_timeline(trace: Trace, folder: Path, title: str) -> Iterator[Path]:
    """Write the points as JSON and a drawing as HTML; write nothing without memory events."""
    timeline = memory_timeline(trace)
    if not timeline:
        return
    points = {
        device: {"time_ns": times.tolist(), "allocated_bytes": totals.tolist()}
        for device, (times, totals) in timeline.items()
    }
    path = folder / "memory_timeline.json"
    write_atomic(path, json.dumps(points))
    yield path
    page = folder / "memory_timeline.html"
    write_atomic(page, _page(title, timeline))
    yield page


def _page(title: str, timeline: Timeline) -> str:
    drawings = "".join(_drawing(device, *line) for device, line in timeline.items())
    return (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
        "<style>body{font:14px sans-serif;margin:2em}svg{background:#f6f6f6}"
        "path{fill:#7aa6d8;stroke:#2b5f9e}</style>"
        f"<h1>Allocated tensor memory: {html.escape(title)}</h1>{drawings}\n"
    )


def _drawing(device: str, times: NDArray[np.int64], totals: NDArray[np.int64]) -> str:
    """Return one device's line as SVG, with the highest value in each pixel column."""
    span, peak = max(int(times[-1]), 1), max(int(totals.max()), 1)
    columns = times * (_WIDTH - 1) // span
    highest = np.zeros(_WIDTH, np.int64)
    np.maximum.at(highest, columns, totals)
    last = np.zeros(_WIDTH, np.int64)
    last[columns] = totals
    known = np.zeros(_WIDTH, bool)
    known[columns] = True
    held = np.maximum.accumulate(np.where(known, np.arange(_WIDTH), 0))
    highest = np.where(known, highest, last[held])
    levels = _HEIGHT - highest * _HEIGHT // peak
    line = " ".join(f"L{x} {y}" for x, y in enumerate(levels.tolist()))
    return (
        f"<h2>{html.escape(device)}</h2><p>{_KNOWN[device == 'cpu']}</p>"
        f"<p>Vertical: 0 to {peak / 1e6:,.3f} MB. Horizontal: {span / 1e6:,.1f} ms.</p>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT}"><path d="M0 {_HEIGHT} {line} '
        f'L{_WIDTH} {_HEIGHT} Z"/></svg>'
    )


class Allocation(NamedTuple):
    """One allocation; times in ns since the trace's base time, sizes in bytes.

    Attributes:
        operator: The innermost operator that made it; empty if none did.
        size: Its size.
        allocated: When it was made.
        released: When it was released; None if it outlived the trace.
        total_then: Bytes allocated on the device after it was made.
        reserved_then: Bytes reserved by the allocator then.
        total_after: Bytes allocated after its release; None if it was not released.
        reserved_after: Bytes reserved after its release; None if it was not released.
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
    """Return every allocation of a trace, in order."""
    memory = trace.memory
    columns = (
        "time", "bytes", "total", "reserved", "address", "device_type", "device_id",
    )  # fmt: skip
    events = list(zip(*(memory[name].tolist() for name in columns), strict=True))
    makers = _allocating_operators(trace)
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


def _allocating_operators(trace: Trace) -> list[str]:
    """Return the name of the innermost operator open at each memory event."""
    spans = trace.spans
    chosen = np.flatnonzero(trace.category(OPERATORS))
    start, thread, names = spans["start"][chosen], spans["thread"][chosen], trace.tables["name"]
    starts, ends = start.tolist(), (start + spans["length"][chosen]).tolist()
    codes = spans["name"][chosen].tolist()
    result = [""] * len(trace.memory["time"])
    for number in distinct(trace.memory["thread"]).tolist():
        selected = np.flatnonzero(thread == number)
        events = np.flatnonzero(trace.memory["thread"] == number)
        times = trace.memory["time"][events].tolist()
        stack: list[int] = []
        ahead = iter(selected.tolist())
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
