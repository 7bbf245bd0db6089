"""Real GPU traces, as far as a folder has them: they are no part of the project."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

REAL = Path(os.environ.get("DYNPROF_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
TRACES = sorted(REAL.glob("*.gz"))
needs_real = pytest.mark.skipif(
    not TRACES, reason="DYNPROF_TRACES names no folder of real GPU traces"
)
on_each = pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.slow) for path in TRACES],
    ids=[path.name.split(".")[0] for path in TRACES],
)  # fmt: skip


def raw_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a trace that have a duration, as Python's own reader finds them."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        found = json.load(file)["traceEvents"]
    return [event for event in found if event.get("ph") == "X"]


def everything(path: Path) -> list[dict[str, Any]]:
    """Return all events, with ``begin`` and ``end`` in whole ns, ``kind`` and ``thread``."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        events: list[dict[str, Any]] = json.load(file, parse_float=str)["traceEvents"]
    for event in events:
        event["begin"] = nanoseconds(event.get("ts", 0))
        event["end"] = event["begin"] + nanoseconds(event.get("dur", 0))
        event["kind"] = str(event.get("cat")).lower()
        event["thread"] = (event.get("pid"), event.get("tid"))
    return events


def nanoseconds(text: Any) -> int:
    """Return microseconds, as a trace has them, in whole ns."""
    whole, _, rest = str(text).partition(".")
    return int(whole) * 1000 + int((rest + "000")[:3])
