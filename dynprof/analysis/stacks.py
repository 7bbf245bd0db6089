"""Folded stacks: a line for each path of frames and operators, with the time spent in its last."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.capture import Capture
from dynprof.analysis.nesting import ROOT, own_time
from dynprof.analysis.operators import CALLS, OPERATORS, started_on_device
from dynprof.layout import private, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

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
    trace, chosen, parent = capture.trace, capture.calls.span, capture.calls.parent
    if on_device:
        counted = trace.category(OPERATORS, CALLS)[chosen]
        time_ns = np.zeros(len(chosen), np.int64)
        ids = trace.spans["external_id"][chosen[counted]]
        time_ns[counted] = started_on_device(trace, ids)
    else:
        time_ns = own_time(trace.spans["length"][chosen], parent)
    path, stacks = _paths(trace.spans["name"][chosen], parent, trace.tables["name"])
    total = np.bincount(path, weights=time_ns, minlength=len(stacks)) // 1000
    for number in np.flatnonzero(total):
        yield stacks[number], int(total[number])


def _paths(
    name: NDArray[np.int64], parent: NDArray[np.int64], names: list[str]
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the number of each span's path, and what each path is called."""
    known: dict[tuple[int, int], int] = {}
    stacks: list[str] = []
    path = np.zeros(len(name), np.int64)
    for span, (own, outer) in enumerate(zip(name.tolist(), parent.tolist(), strict=True)):
        above = ROOT if outer == ROOT else int(path[outer])
        number = known.get((above, own))
        if number is None:
            number = known[above, own] = len(stacks)
            text = names[own].translate(_UNSAFE)
            stacks.append(text if above == ROOT else f"{stacks[above]};{text}")
        path[span] = number
    return path, stacks
