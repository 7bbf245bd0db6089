"""Folded stacks: a line for each path of frames and operators, with the time spent in its last."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.capture import Capture
from dynprof.analysis.nesting import ROOT, own_time
from dynprof.analysis.operators import CALLS, OPERATORS, started_on_device
from dynprof.layout import private, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_UNSAFE = str.maketrans(" ;\t\n", "____")
"""What separates frames and counts in the format."""


def write_folded(trace: Path, path: Path, *, on_device: bool = False) -> None:
    """Write the folded stacks of a trace, in microseconds.

    Args:
        trace: The trace.
        path: Where to.
        on_device: Count what operators started on a device, not what they took of the host.

    Raises:
        CaptureError: It is no trace.
    """
    _write(path, folded(Capture(trace), on_device=on_device))


def _write(path: Path, lines: Iterable[tuple[str, int]]) -> None:
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.writelines(f"{stack} {microseconds}\n" for stack, microseconds in lines)


def speedscope(title: str, lines: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Return folded stacks as speedscope's file format has them."""
    frames: dict[str, int] = {}
    samples, weights = [], []
    for stack, microseconds in lines:
        samples.append([frames.setdefault(name, len(frames)) for name in stack.split(";")])
        weights.append(microseconds)
    profile = {
        "type": "sampled",
        "name": title,
        "unit": "microseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": title,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": [profile],
    }


def write_stacks(capture: Capture, folder: Path) -> Iterator[Path]:
    """Write the stacks folded, and for speedscope; yield the paths."""
    lines = list(folded(capture))
    path = folder / "stacks.folded"
    _write(path, lines)
    yield path
    flame = folder / "stacks.speedscope.json"
    write_atomic(flame, json.dumps(speedscope(capture.path.name, lines)))
    yield flame


def folded(capture: Capture, *, on_device: bool = False) -> Iterator[tuple[str, int]]:
    """Yield each path once, outermost frame first, with its own microseconds."""
    tree = call_tree(capture, on_device=on_device)
    stacks: list[str] = []
    for name, outer, own in zip(tree.name, tree.parent, tree.own_ns, strict=True):
        text = capture.trace.tables["name"][name].translate(_UNSAFE)
        stacks.append(text if outer == ROOT else f"{stacks[outer]};{text}")
        if own >= 1000:
            yield stacks[-1], own // 1000


@dataclass(frozen=True)
class CallTree:
    """Every path of frames and operators once, each after what it lies in.

    Attributes:
        name: Places in the trace's names of the last of each path.
        parent: Places here of what each lies in; -1 for none.
        own_ns: Time without that of what lies in it.
    """

    name: list[int]
    parent: list[int]
    own_ns: list[int]


def call_tree(capture: Capture, *, on_device: bool = False) -> CallTree:
    """Return the paths of all threads together.

    Args:
        capture: The capture.
        on_device: Count what operators started on a device, not what they took of the host.
    """
    trace, chosen, parent = capture.trace, capture.calls.span, capture.calls.parent
    if on_device:
        counted = trace.category(OPERATORS, CALLS)[chosen]
        time_ns = np.zeros(len(chosen), np.int64)
        ids = trace.spans["external_id"][chosen[counted]]
        time_ns[counted] = started_on_device(trace, ids)
    else:
        time_ns = own_time(trace.spans["length"][chosen], parent)
    known: dict[tuple[int, int], int] = {}
    path: list[int] = []
    for own, outer in zip(trace.spans["name"][chosen].tolist(), parent.tolist(), strict=True):
        above = ROOT if outer == ROOT else path[outer]
        path.append(known.setdefault((above, own), len(known)))
    total = np.bincount(np.array(path, np.int64), weights=time_ns, minlength=len(known))
    return CallTree(
        name=[own for _, own in known],
        parent=[above for above, _ in known],
        own_ns=total.astype(np.int64).tolist(),
    )
