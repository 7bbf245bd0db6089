"""Small traces of operators with sequence numbers, and what of them runs again backward."""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.measured_trace import MeasuredTrace

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
GRAPH = "autograd::engine::evaluate_function"


def write(path: Path, events: list[Event]) -> MeasuredTrace:
    """Return a trace of a few events on thread 1 of process 1."""
    whole = [{"ph": "X", "pid": 1, "tid": 1, **event} for event in events]
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": whole}))
    return MeasuredTrace(path)


def run_again(events: list[Event]) -> list[Event]:
    """Return the forward work in each call of the engine, as plain loops find it.

    It is modules, operators with a sequence number unless all in the call have one or one is
    new there, and labels around these.
    """
    by_thread = defaultdict[Any, list[Event]](list)
    for event in events:
        if event.get("ph") == "X":
            by_thread[event["thread"]].append(event)
    found = list[Event]()
    for spans in by_thread.values():
        spans.sort(key=lambda e: (e["begin"], -e["end"]))
    forward = {what(event) for spans in by_thread.values() for event in outside(spans)}
    for spans in by_thread.values():
        calls = [place for place, span in enumerate(spans) if span["name"].startswith(GRAPH)]
        for place in calls:
            end = bisect.bisect_left(spans, spans[place]["end"], key=lambda e: e["begin"])
            found += _again_in_call(spans[place], spans[place + 1 : end], forward)
    return found


def outside(spans: list[Event]) -> list[Event]:
    """Return the operators of a thread outside of the engine's calls."""
    found, until = list[Event](), 0
    for span in spans:
        if span["name"].startswith(GRAPH):
            until = max(until, span["end"])
        elif span["begin"] >= until and span["kind"] in ("cpu_op", "operator"):
            found.append(span)
    return found


def copies_state(event: Event) -> bool:
    """Return whether an operator copies bytes, such as a random generator's state."""
    types = event["args"].get("Input type")
    return event["name"] == "aten::clone" and (not types or "unsigned char" in types)


def what(event: Event) -> tuple[str, str]:
    """Return an operator's name and inputs."""
    args = event.get("args", {})
    return event["name"], json.dumps([args.get("Input Dims"), args.get("Input type")])


def _again_in_call(call: Event, inside: list[Event], forward: set[tuple[str, str]]) -> list[Event]:
    """Return what runs again in one call of the engine, of what begins inside it."""
    own, engine_until = list[Event](), 0
    for span in inside:
        if span["name"].startswith(GRAPH):
            engine_until = max(engine_until, span["end"])
        elif span["begin"] >= engine_until:
            own.append(span)
    operators = [e for e in own if e["kind"] in ("cpu_op", "operator")
                 and e["name"] != call["name"].removeprefix(f"{GRAPH}: ")]  # fmt: skip
    numbered = [e for e in operators if "Sequence number" in e.get("args", {})]
    without = [
        e for e in operators if e not in numbered
        and not any(n["begin"] <= e["begin"] and e["end"] <= n["end"] for n in numbered)
    ]  # fmt: skip
    again = [e for e in own if e["kind"] == "python_function" and e["name"].startswith("nn.Module")]
    outermost = [
        e for e in numbered if not copies_state(e)
        and not any(n is not e and n["begin"] <= e["begin"] and e["end"] <= n["end"]
                    for n in numbered)
    ]  # fmt: skip
    known = all(what(one) in forward for one in outermost)
    again += numbered if known and (without or engine_until) else []
    ends = [(one["begin"], one["end"]) for one in again]
    labels = [e for e in own if e["kind"] == "user_annotation"
              and any(e["begin"] <= begin and end <= e["end"] for begin, end in ends)]  # fmt: skip
    return again + labels


def operator(name: str, ts: int, dur: int, sequence: int, thread: int = 1) -> Event:
    """Return an operator with a sequence number."""
    event = {"name": name, "cat": "cpu_op", "ts": ts, "dur": dur, "tid": thread}
    return {**event, "args": {"Sequence number": sequence}}
