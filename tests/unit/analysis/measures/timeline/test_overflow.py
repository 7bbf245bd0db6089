"""If VizTracer's ring overflowed, a step that lost some of its calls is left out."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]


def calls_of_steps(generator: random.Random) -> list[Event]:
    """Return the calls and marks of ten steps, in the order of their ends."""
    found: list[Event] = []
    for step in range(10):
        begin, count = 1000.0 * step, generator.randint(1, 6)
        times = sorted(generator.sample(range(1, 900), 2 * count))
        pairs = list(zip(times[::2], times[1::2], strict=True))
        found += [_event("f (a.py:1)", "fee", begin + a, b - a) for a, b in pairs]
        found.append(_event("outer (a.py:9)", "fee", begin + 0.5, 950))
        found.append(_event(f"ProfilerStep#{step}", "step", begin, 999))
    return found


def _event(name: str, category: str, begin: float, length: float) -> Event:
    where = {"ph": "X", "pid": 1, "tid": 1}
    return {"name": name, "cat": category, "ts": begin, "dur": length, **where}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("overflow", [True, False])
def test_only_whole_steps_are_kept(tmp_path: Path, seed: int, overflow: bool) -> None:
    """A plain count finds the steps without dropped events. A trace without losses keeps all.

    The step of the oldest remaining event may have lost earlier ones.
    """
    generator = random.Random(seed)  # noqa: S311 - nothing is secret here
    events = calls_of_steps(generator)
    gone = generator.randint(1, len(events) - 20)
    kept = events[gone:]
    lost = {int(event["ts"] // 1000) for event in events[: gone + 1]}
    path = tmp_path / "a.trace.json"
    metadata = {"overflow": overflow}
    path.write_text(json.dumps({"traceEvents": kept, "viztracer_metadata": metadata}))
    marked = {int(event["name"][13:]) for event in kept if event["cat"] == "step"}
    found = {number for number, _, _ in MeasuredTrace(path).marked}
    assert found == (marked - lost if overflow else marked)
