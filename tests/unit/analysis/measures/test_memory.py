"""Each allocation with its operator and its release, and the amount over time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.memory import (
    allocations,
    memory_timeline,
    write_memory_timeline,
)
from dynprof.analysis.reading.trace import load_trace

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.analysis.reading.trace import Trace

CPU, CUDA = (0, -1), (1, 3)
"""Type and number of a device, in Kineto's format."""


def operator(name: str, begin: int, length: int, thread: int = 1) -> dict[str, Any]:
    """Return an operator's event; times in microseconds."""
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "ts": begin, "dur": length,
        "pid": 1, "tid": thread,
    }  # fmt: skip


def change(
    at: int, size: int, address: int, total: int, device: tuple[int, int] = CPU, thread: int = 1
) -> dict[str, Any]:
    """Return the event of an allocation, or of a release, which has a negative size."""
    facts = {
        "Bytes": size, "Addr": address, "Total Allocated": total, "Total Reserved": 2 * total,
        "Device Type": device[0], "Device Id": device[1],
    }  # fmt: skip
    return {
        "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "ts": at,
        "pid": 1, "tid": thread, "args": facts,
    }  # fmt: skip


def trace_of(tmp_path: Path, *events: dict[str, Any]) -> Trace:
    """Write a trace of these events, and read it."""
    path = tmp_path / "made.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return load_trace(path)


def test_an_allocation_has_its_operator_and_its_release(tmp_path: Path) -> None:
    """The innermost operator of its own thread made it; an address may be reused."""
    found = allocations(
        trace_of(
            tmp_path,
            operator("aten::linear", 0, 100),
            operator("aten::addmm", 10, 30),
            operator("aten::other", 0, 100, thread=2),
            change(20, 64, 0xA, 64),
            change(50, 32, 0xB, 96),
            change(60, -64, 0xA, 32),
            change(70, 16, 0xA, 48),
            change(150, 8, 0xC, 56),
        )
    )
    assert [(one.operator, one.size, one.released is None) for one in found] == [
        ("aten::addmm", 64, False),
        ("aten::linear", 32, True),
        ("aten::linear", 16, True),
        ("", 8, True),
    ]
    first = found[0]
    assert first.released is not None
    assert first.released - first.allocated == 40_000
    assert (first.total_then, first.total_after, first.reserved_after) == (64, 32, 64)


def test_a_release_is_that_of_its_own_device(tmp_path: Path) -> None:
    """Two devices may have the same addresses; older allocations have no release."""
    found = allocations(
        trace_of(
            tmp_path,
            change(0, -8, 0xF, 0),
            change(10, 64, 0xA, 64),
            change(20, 32, 0xA, 32, CUDA),
            change(30, -64, 0xA, 0),
        )
    )
    assert [(one.device, one.released is None) for one in found] == [
        ("cpu", False),
        ("cuda:3", True),
    ]


def test_the_timeline_has_each_device(tmp_path: Path) -> None:
    """The timeline begins with the first event, as points and a drawing; no events, no file."""
    trace = trace_of(
        tmp_path, change(10, 64, 0xA, 64), change(20, 32, 0xB, 32, CUDA), change(30, -64, 0xA, 0)
    )
    drawn = {device: (*map(list, line),) for device, line in memory_timeline(trace).items()}
    assert drawn == {"cpu": ([0, 20_000], [64, 0]), "cuda:3": ([10_000], [32])}
    points, page = write_memory_timeline(trace, tmp_path, "<made>")
    assert json.loads(points.read_text())["cpu"] == {
        "time_ns": [0, 20_000],
        "allocated_bytes": [64, 0],
    }
    assert "&lt;made&gt;" in page.read_text()
    nothing = trace_of(tmp_path, operator("aten::mm", 0, 10))
    assert list(write_memory_timeline(nothing, tmp_path, "none")) == []
