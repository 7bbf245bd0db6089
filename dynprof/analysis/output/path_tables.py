"""The critical path as csv: what each step's path consists of, and what a step is without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.critical_path.parts import PARTS, PHASES
from dynprof.analysis.output.tables import us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.analysis.measures.critical_path.critical_path import CriticalPath
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.output.tables import Row, Tables

CRITICAL_PATH = ("Step", "Part", "Phase", "Name", "Count", "Time(us)", "Ratio(%)")
WHAT_IF = (
    "What", "On Path(us)", "Step(us)", "Step If It Cost Nothing(us)", "Saving(%)",
)  # fmt: skip


def path_tables(measured: MeasuredTrace) -> Tables:
    """Return what there is to say of the critical path."""
    path = measured.critical_path
    if path is None:
        return {}
    return {
        "critical_path.csv": (CRITICAL_PATH, _parts(path, measured.trace.tables["name"])),
        "critical_path_what_if.csv": (WHAT_IF, _what_ifs(path)),
    }


def _parts(path: CriticalPath, names: list[str]) -> Iterator[Row]:
    """Yield a row for each part of each step, the longest first; they add up to the step."""
    times, lengths = path.times, path.lengths.tolist()
    order = np.lexsort((-times.time, times.step))
    columns = (times.step, times.part, times.phase, times.name, times.count, times.time)
    for step, part, phase, name, count, time in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        number = path.steps[step][0]
        yield (
            "" if number is None else number,
            PARTS[part],
            PHASES[phase] if phase >= 0 else "",
            names[name] if name >= 0 else "",
            count,
            us(time),
            f"{100 * time / max(1, lengths[step]):.3f}",
        )


def _what_ifs(path: CriticalPath) -> Iterator[Row]:
    for one in path.what_ifs:
        saved = 100 * (1 - one.step / path.length) if path.length else 0.0
        times = (one.on_path, path.length, one.step)
        yield (one.what, *(us(round(time)) for time in times), f"{saved:.3f}")
