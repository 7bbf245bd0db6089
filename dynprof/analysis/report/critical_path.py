"""The report's section and sentence on the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.critical_path.parts import (
    COMMUNICATING,
    PARTS,
    PHASES,
)
from dynprof.analysis.measures.critical_path.parts import COMPUTING as KERNELS
from dynprof.analysis.measures.critical_path.parts import COPYING as COPIES
from dynprof.analysis.measures.timeline.breakdown import COMMUNICATION, COMPUTING, COPYING, ms
from dynprof.analysis.measures.timeline.overhead import profiler_of
from dynprof.analysis.report.drawn_steps import steps_to_draw

if TYPE_CHECKING:
    from dynprof.analysis.measures.critical_path.critical_path import CriticalPath, WhatIf
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown

MOST_STEPS, MOST_ROWS = 40, 100
_SHOWN = 0.005
"""Share of the path below which a part is not named in the sentence."""
_SAYS_MORE = 0.1
"""Difference between a share of the path and that of the busy device that is worth a sentence."""
_WORTH = 0.03
"""Share of a step below which a saving is not named in the sentence."""
_WORDS = {
    "between kernels": "gaps between kernels",
    "return to the host": "returning to the host",
    "unknown wait": "waiting for something unknown",
}
"""Names of parts in a sentence, if they differ."""
_NAMELESS = {PARTS[0]: "(outside of operators)", PARTS[-1]: "(unknown)"}


def path_section(measured: MeasuredTrace) -> dict[str, Any] | None:
    """Return the data of the page's section; times in ms."""
    path = measured.critical_path
    if path is None or not path.length:
        return None
    lengths = path.lengths.tolist()
    rows = [
        {
            "number": path.steps[place][0],
            "length": lengths[place] / 1e6,
            "parts": _in_ms(path.parts(place)),
            "skipped": skipped,
        }
        for place, skipped in steps_to_draw(lengths, MOST_STEPS)
    ]
    return {
        "about": _about(path, measured.breakdown),
        "steps": rows,
        "count": len(path.steps),
        "length": path.length / 1e6,
        "what_ifs": [
            [one.what, one.step / 1e6, (path.length - one.step) / 1e6, one.on_path / 1e6]
            for one in path.what_ifs
        ],
        "names": _names(path, measured.trace.tables["name"]),
    }


def _in_ms(times: dict[str, float]) -> dict[str, float]:
    return {name: time / 1e6 for name, time in times.items()}


def _about(path: CriticalPath, steps: Breakdown) -> list[str]:
    """Return how to read the path, in sentences."""
    if path.on_host:
        waits = (
            " Waiting for a collective counts as its work." if steps.parts[COMMUNICATION] else ""
        )
        return [
            "No device worked: the path is the thread of the steps itself, and autograd's while "
            f"it waits for that one.{waits}"
        ]
    found = [
        "The work that a step had to wait for, until host and devices were done with it. It is "
        "found backwards along launches, streams, events and synchronisations, to the end of the "
        "step before. Work that other work hides is not on the path."
    ]
    if not path.waits_recorded:
        found.append(
            "The trace does not show what streams wait for. A requested wait is charged to the "
            "work that ended last before it; the rest is an unknown wait. To record what streams "
            "wait for, set profiler_level Level1 (in torch, enable_cuda_sync_events)."
        )
    return found


def _names(path: CriticalPath, names: list[str]) -> list[list[Any]]:
    """Return the parts of the path in the mean step by name, the longest first.

    A profiler's own work has the profiler's name.
    """
    times, steps = path.times, max(1, len(path.ends))
    keys = np.stack([times.name, times.part, times.phase], axis=1)
    rows, where = np.unique(keys, axis=0, return_inverse=True)
    time, count = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    np.add.at(time, where.ravel(), times.time)
    np.add.at(count, where.ravel(), times.count)
    found: dict[tuple[str, str], list[int]] = {}
    for (name, part, phase), *more in zip(
        rows.tolist(), count.tolist(), time.tolist(), strict=True
    ):
        shown = names[name] if name >= 0 else _NAMELESS.get(PARTS[part], "")
        where_is = f"{PARTS[part]}, {PHASES[phase]}" if phase >= 0 else PARTS[part]
        sums = found.setdefault((profiler_of(shown) or shown, where_is), [0, 0])
        sums[:] = [one + other for one, other in zip(sums, more, strict=True)]
    longest = sorted(found.items(), key=lambda row: -row[1][1])[:MOST_ROWS]
    return [[*what, pieces / steps, ns / steps / 1e6] for what, (pieces, ns) in longest]


def path_sentence(measured: MeasuredTrace) -> list[str]:
    """Return a sentence on the path if it shows more than the shares of the verdict."""
    path, steps = measured.critical_path, measured.breakdown
    if path is None or path.on_host or steps.on_host or not path.length:
        return []
    parts = path.parts()
    beside = {
        COMPUTING: parts[PARTS[KERNELS]],
        COMMUNICATION: parts[PARTS[COMMUNICATING]],
        COPYING: parts[PARTS[COPIES]],
    }
    differs = (abs(t / path.length - steps.share(steps.parts[n])) for n, t in beside.items())
    if max(differs) < _SAYS_MORE:
        return []
    shares = sorted(((time / path.length, name) for name, time in parts.items()), reverse=True)
    named = [f"{share:.0%} {_WORDS.get(name, name)}" for share, name in shares if share >= _SHOWN]
    whole = "a step" if steps.marked else "the trace"
    if measured.outliers:
        whole = "the mean step"  # of all steps, as the path includes the outliers
    return [f"On its critical path {whole} is {_joined(named)}; {_best(path, path.what_ifs)}."]


def _best(path: CriticalPath, what_ifs: list[WhatIf]) -> str:
    worth = [one for one in what_ifs if one.step <= (1 - _WORTH) * path.length]
    if not worth:
        return "nothing on it, taken by itself, would save much if it cost nothing"
    return (
        f"if {worth[0].what} cost nothing, it would take {ms(worth[0].step)}, not {ms(path.length)}"
    )


def _joined(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
