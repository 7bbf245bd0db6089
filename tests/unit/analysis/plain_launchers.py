"""The operator that launched each device activity, found by plain loops over raw events."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
HOST = ("cpu_op", "operator", "user_annotation")
CALLS = ("cuda_runtime", "cuda_driver", "runtime")
LEFT_OUT = ("profiler::_record_function", "aten::is_leaf", "aten::output_nr", "aten::_version")
ANY = "any"
"""In place of the shapes of an operator in another one of the same name."""
Event = dict[str, Any]


def open_operators(calls: list[Event], operators: dict[Any, list[Event]]) -> dict[int, list[Event]]:
    """Return the operators that were open when each call began, on its thread, outermost first."""
    found: dict[int, list[Event]] = {}
    ahead = {thread: sorted(mine, key=lambda one: (one["begin"], -one["end"]))[::-1]
             for thread, mine in operators.items()}  # fmt: skip
    now = defaultdict[Any, list[Event]](list)
    for call in sorted(calls, key=lambda call: call["begin"]):
        coming, mine = ahead.get(call["thread"], []), now[call["thread"]]
        while coming and coming[-1]["begin"] <= call["begin"]:
            mine.append(coming.pop())
        mine[:] = [one for one in mine if one["end"] > call["begin"]]
        found[id(call)] = mine.copy()
    return found


def launchers(events: list[Event]) -> list[tuple[Event, Event | None]]:
    """Return each device activity with the innermost operator open at its launch.

    Without a recorded launch it is the operator of the same id.
    """
    calls = {e["args"]["correlation"]: e for e in events
             if e["kind"] in CALLS and "correlation" in e.get("args", {})}  # fmt: skip
    operators, by_id = defaultdict[Any, list[Event]](list), dict[int, Event]()
    for event in events:
        if event["kind"] in HOST and not event["name"].startswith(LEFT_OUT):
            operators[event["thread"]].append(event)
            by_id[event.get("args", {}).get("External id", 0)] = event
    open_at = open_operators(list(calls.values()), operators)
    found = []
    for work in events:
        if work["kind"] in ON_DEVICE and work.get("ph") == "X":
            call = calls.get(work["args"]["correlation"])
            around = open_at[id(call)].copy() if call else []
            number = work["args"].get("External id", 0)
            if not call and number not in (0, work["args"]["correlation"]) and number in by_id:
                around = [one for one in [by_id[number]] if one["begin"] <= work["begin"]]
            if len(around) > 1 and around[-2]["name"] == around[-1]["name"]:
                around[-1]["args"] = {"Input Dims": ANY}  # one may only repeat the other
            found.append((work, around[-1] if around else None))
    return found
