"""Two traces against each other: what grew, by count and by time, in each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.analysis.measures.timeline.kernels import kinds
from dynprof.analysis.measures.timeline.operators import STEPS, averages
from dynprof.analysis.measures.timeline.phases import REST, mean_phases
from dynprof.analysis.reading.categories import CALLS, FRAMES, KERNELS, OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dynprof.analysis.measures.measured_trace import MeasuredTrace


@dataclass(frozen=True)
class Growth:
    """How one name changed from the first trace to the second, in each step.

    Attributes:
        name: Of operators of the host, of kernels of a device, of a part of the step or a phase.
        where: ``host``, ``device``, ``step`` or ``phase``.
        count: How many ran in a step of the first, and of the second.
        time_ns: Their own time in a step of the first, and of the second.
    """

    name: str
    where: str
    count: tuple[float, float]
    time_ns: tuple[float, float]

    @property
    def cost_ns(self) -> float:
        """What it costs each step more, in ns; below 0 where it costs less."""
        return self.time_ns[1] - self.time_ns[0]


def step_ns(measured: MeasuredTrace) -> float:
    """Return the mean duration of a step, in ns."""
    lengths = [length for _, _, length in measured.marked]
    return sum(lengths) / max(1, len(lengths))


def why_not_comparable(one: MeasuredTrace, other: MeasuredTrace) -> list[str]:
    """Say what makes the numbers of two traces mean different things."""
    theirs = _recorded(other)
    return [
        f"only the {'first' if there else 'second'} has {what}"
        for what, there in _recorded(one).items()
        if there != theirs[what]
    ]


def _recorded(measured: MeasuredTrace) -> dict[str, bool]:
    """Return what of the things that change the other numbers was recorded."""
    trace = measured.trace
    return {
        "operators": bool(trace.category(OPERATORS).any()),
        "the host's Python frames": bool(trace.category(FRAMES).any()),
        "shapes of operators": len(trace.tables["dims"]) > 1,
        "memory events": len(trace.memory["time"]) > 0,
        "a device": bool(trace.category(KERNELS).any()),
        "calls of Python in the place of operators": bool(trace.category(CALLS).any()),
        "all of its events": trace.complete,
        "marked steps": any(number is not None for number, _, _ in measured.marked),
        "phases of the host": any(
            step[name] for step in measured.phases for name in step.keys() - {REST}
        ),
    }


def growths(one: MeasuredTrace, other: MeasuredTrace) -> list[Growth]:
    """Return every name that changed, what costs a step most first."""
    work = [{row[:2]: row[2:] for row in step_work(measured)} for measured in (one, other)]
    found = []
    for name, where in dict.fromkeys((*work[0], *work[1])):
        (count, time), (count_after, time_after) = (w.get((name, where), (0, 0)) for w in work)
        if (count, time) != (count_after, time_after):
            found.append(Growth(name, where, (count, count_after), (time, time_after)))
    return sorted(found, key=lambda growth: -abs(growth.cost_ns))


def part_growths(one: MeasuredTrace, other: MeasuredTrace) -> list[Growth]:
    """Return the parts of a step on the clock that changed, as computing, what costs most first."""
    return _changed("step", one.breakdown.parts, other.breakdown.parts)


def phase_growths(one: MeasuredTrace, other: MeasuredTrace) -> list[Growth]:
    """Return the phases of the host that changed, what costs a step most first."""
    return _changed("phase", mean_phases(one.phases), mean_phases(other.phases))


def _changed(where: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[Growth]:
    names = dict.fromkeys((*before, *after))
    both = ((name, (before.get(name, 0), after.get(name, 0))) for name in names)
    found = [Growth(name, where, (1, 1), times) for name, times in both if times[0] != times[1]]
    return sorted(found, key=lambda growth: -abs(growth.cost_ns))


def step_work(measured: MeasuredTrace) -> Iterator[tuple[str, str, float, float]]:
    """Yield name, place (``host`` or ``device``), count and own ns of what runs in a step."""
    steps, counted = max(1, len(measured.marked)), measured.in_steps
    for average in averages(measured.trace, measured.operators, counted):
        if average.name != STEPS:
            yield average.name, "host", average.count / steps, average.own / steps
    for kind in kinds(measured.trace, measured.operators, counted):
        if kind.core != "HOST":
            yield kind.name, "device", kind.count / steps, kind.total / steps
