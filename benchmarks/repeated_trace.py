"""Large traces made by repeating a real trace of a device."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_STEP = re.compile(r"(ProfilerStep#)(\d+)")


def repeat_trace(source: Path, path: Path, megabytes: int) -> None:
    """Write a trace repeatedly; each repetition is later and has its own ids and steps.

    Args:
        source: The trace, gzipped.
        path: The output file.
        megabytes: The approximate size.
    """
    with gzip.open(source, "rb") as file:
        trace = json.load(file)
    events = trace.pop("traceEvents")
    timed = [event for event in events if "ts" in event and event.get("ph") in ("X", "s", "f")]
    begin = min(float(event["ts"]) for event in timed)
    length = max(float(event["ts"]) + float(event.get("dur", 0)) for event in timed) - begin
    most = max(_ids(event) for event in timed) + 1
    steps = {int(found[2]) for event in timed if (found := _STEP.match(event["name"]))}
    one = sum(len(json.dumps(event)) + 2 for event in timed)
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"schemaVersion": 1, **trace})[:-1] + ', "traceEvents": [\n')
        rest = [event for event in events if event.get("ph") == "M"]
        file.write(",\n".join(map(json.dumps, rest)))
        for time in range(max(1, round(megabytes * 1e6 / one))):
            for event in timed:
                later = _again(event, time * (length + 1), time * most, time * (len(steps) or 1))
                file.write(",\n" + json.dumps(later))
        file.write("\n]}")


def _ids(event: dict[str, Any]) -> int:
    args = event.get("args") or {}
    numbers = (event.get("id", 0), args.get("correlation", 0), args.get("External id", 0))
    return max(number for number in numbers if isinstance(number, int))


def _again(event: dict[str, Any], later: float, ids: int, steps: int) -> dict[str, Any]:
    """Return an event with the time, ids and step of a later repetition."""
    name = _STEP.sub(lambda found: f"{found[1]}{int(found[2]) + steps}", event["name"])
    found = {**event, "name": name, "ts": event["ts"] + later}
    if isinstance(event.get("id"), int):
        found["id"] = event["id"] + ids
    args = dict(event.get("args") or {})
    for key in ("correlation", "External id"):
        if args.get(key, 0) > 0:
            args[key] += ids
    return {**found, "args": args} if args else found
