"""Folded stacks: a line for each path of frames and operators, with the time of its last one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.reading.spans import ROOT
from dynprof.runtime.safe_write import atomic_text_file, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_UNSAFE = str.maketrans(" ;\t\n", "____")
"""Replaces the characters that separate frames and counts in the format."""


def write_folded(trace: Path, path: Path, *, on_device: bool = False) -> None:
    """Write the folded stacks of a trace, in microseconds.

    Args:
        trace: The trace.
        path: The file to write.
        on_device: Count the device's time for operators, not the host's.

    Raises:
        CaptureError: The file is not a trace.
    """
    _write(path, folded(MeasuredTrace(trace), on_device=on_device))


def _write(path: Path, lines: Iterable[tuple[str, int]]) -> None:
    with atomic_text_file(path) as file:
        file.writelines(f"{stack} {microseconds}\n" for stack, microseconds in lines)


def speedscope(title: str, lines: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Return folded stacks in speedscope's file format."""
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


def write_stacks(measured: MeasuredTrace, folder: Path) -> Iterator[Path]:
    """Write the folded stacks, and those for speedscope, unless there are none; yield the paths."""
    lines = list(folded(measured))
    if not lines:
        return
    path = folder / "stacks.folded"
    _write(path, lines)
    yield path
    flame = folder / "stacks.speedscope.json"
    write_atomic(flame, json.dumps(speedscope(measured.path.name, lines)))
    yield flame


def folded(measured: MeasuredTrace, *, on_device: bool = False) -> Iterator[tuple[str, int]]:
    """Yield each path once, outermost frame first, with its self time in us."""
    tree = measured.tree_on_device if on_device else measured.tree
    stacks: list[str] = []
    for name, outer, self_ns in zip(tree.name, tree.parent, tree.self_ns, strict=True):
        text = measured.trace.tables["name"][name].translate(_UNSAFE)
        stacks.append(text if outer == ROOT else f"{stacks[outer]};{text}")
        if self_ns >= 1000:
            yield stacks[-1], self_ns // 1000
