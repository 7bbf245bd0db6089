"""Comparison of two captures: what grew in each step, by count and by time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.analysis.measures.timeline.kernels import kinds
from dynprof.analysis.measures.timeline.operators import ITERATIONS, STEPS, averages
from dynprof.analysis.measures.timeline.phases import REST, mean_phases
from dynprof.analysis.reading.events import CALLS, FRAMES, KERNELS, OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dynprof.analysis.measures.measured_trace import MeasuredTrace

_NUMBER = re.compile(r"(?<=.)#\d+$")
"""The number at the end of the name of a range."""


@dataclass(frozen=True)
class MeanStep:
    """The mean step of a trace, or of the traces of several ranks.

    Attributes:
        a_step: What to call it in a sentence: a trace without steps is "the trace".
        whole_ns: Its duration.
        parts: Parts of its wall time, such as computing, in ns.
        phases: Phases of the host, in ns.
        work: By name and place, how many ran in it, and their own time in ns.
        recorded: Whether each kind of data that affects the other numbers was recorded.
    """

    a_step: str
    whole_ns: float
    parts: Mapping[str, float]
    phases: Mapping[str, float]
    work: Mapping[tuple[str, str], tuple[float, float]]
    recorded: Mapping[str, bool]

    @classmethod
    def of(cls, measured: MeasuredTrace) -> MeanStep:
        """Return the mean step of a trace."""
        lengths = [length for _, _, length in measured.marked]
        return cls(
            a_step=measured.breakdown.a_step,
            whole_ns=sum(lengths) / max(1, len(lengths)),
            parts=measured.breakdown.parts,
            phases=mean_phases(measured.phases),
            work={(name, where): (count, own) for name, where, count, own in step_work(measured)},
            recorded=_recorded(measured),
        )

    @classmethod
    def of_ranks(cls, ranks: Sequence[MeanStep]) -> MeanStep:
        """Return the mean over ranks. Work that a rank does not have counts as 0 for it."""
        works: dict[tuple[str, str], tuple[float, float]] = {}
        for key in dict.fromkeys(key for rank in ranks for key in rank.work):
            counts, times = zip(*(rank.work.get(key, (0.0, 0.0)) for rank in ranks), strict=True)
            works[key] = sum(counts) / len(ranks), sum(times) / len(ranks)
        return cls(
            a_step=" or ".join(sorted({rank.a_step for rank in ranks})),
            whole_ns=sum(rank.whole_ns for rank in ranks) / len(ranks),
            parts=_mean([rank.parts for rank in ranks]),
            phases=_mean([rank.phases for rank in ranks]),
            work=works,
            recorded={what: all(r.recorded[what] for r in ranks) for what in ranks[0].recorded},
        )


def _mean(of_each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in of_each for name in one)
    return {name: sum(one.get(name, 0.0) for one in of_each) / len(of_each) for name in names}


@dataclass(frozen=True)
class Growth:
    """How one name changed from the first capture to the second, in each step.

    Attributes:
        name: Name of the operators, kernels, part of the step, or phase.
        where: ``host``, ``device``, ``step`` or ``phase``.
        count: How many ran in a step of the first capture, and of the second.
        time_ns: Their own time in a step of the first capture, and of the second.
    """

    name: str
    where: str
    count: tuple[float, float]
    time_ns: tuple[float, float]

    @property
    def cost_ns(self) -> float:
        """The extra time in each step, in ns; negative if it takes less."""
        return self.time_ns[1] - self.time_ns[0]


def why_not_comparable(one: MeanStep, other: MeanStep) -> list[str]:
    """Return the reasons why the numbers of two captures cannot be compared."""
    return [
        f"only the {'first' if there else 'second'} has {what}"
        for what, there in one.recorded.items()
        if there != other.recorded[what]
    ]


def _recorded(measured: MeasuredTrace) -> dict[str, bool]:
    """Return whether each kind of data that affects the other numbers was recorded."""
    trace = measured.trace
    return {
        "operators": bool(trace.category(OPERATORS).any()),
        "the host's Python frames": bool(trace.category(FRAMES).any()),
        "shapes of operators": len(trace.tables["dims"]) > 1,
        "memory events": len(trace.memory["time"]) > 0,
        "a device": bool(trace.category(KERNELS).any()),
        "Python calls instead of operators": bool(trace.category(CALLS).any()),
        "all of its events": trace.complete,
        "marked steps": any(number is not None for number, _, _ in measured.marked),
        "phases of the host": any(
            step[name] for step in measured.phases for name in step.keys() - {REST}
        ),
    }


def growths(one: MeanStep, other: MeanStep) -> list[Growth]:
    """Return every name whose time or count changed, the largest change first."""
    found = []
    for key in dict.fromkeys((*one.work, *other.work)):
        (count, time), (count_after, time_after) = (
            step.work.get(key, (0, 0)) for step in (one, other)
        )
        if (count, time) != (count_after, time_after):
            found.append(Growth(*key, (count, count_after), (time, time_after)))
    return sorted(found, key=lambda growth: -abs(growth.cost_ns))


def part_growths(one: MeanStep, other: MeanStep) -> list[Growth]:
    """Return the changed parts of a step's wall time, the largest change first."""
    return _changed("step", one.parts, other.parts)


def phase_growths(one: MeanStep, other: MeanStep) -> list[Growth]:
    """Return the phases of the host that changed, the largest change first."""
    return _changed("phase", one.phases, other.phases)


def _changed(where: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[Growth]:
    names = dict.fromkeys((*before, *after))
    both = ((name, (before.get(name, 0), after.get(name, 0))) for name in names)
    found = [Growth(name, where, (1, 1), times) for name, times in both if times[0] != times[1]]
    return sorted(found, key=lambda growth: -abs(growth.cost_ns))


def step_work(measured: MeasuredTrace) -> Iterator[tuple[str, str, float, float]]:
    """Yield name, place (``host`` or ``device``), count and own ns of the work of a step.

    Ranges that differ only in their number count as one, such as ``epoch#*``.
    """
    steps, counted = max(1, len(measured.marked)), measured.in_steps
    found: dict[str, tuple[int, int]] = {}
    for average in averages(measured.trace, measured.operators, counted):
        name = _NUMBER.sub("#*", average.name)
        count, own = found.get(name, (0, 0))
        found[name] = count + average.count, own + average.own
    for name, (count, own) in found.items():
        if name not in (STEPS, ITERATIONS):
            yield name, "host", count / steps, own / steps
    for kind in kinds(measured.trace, measured.operators, counted):
        if kind.core != "HOST":
            yield kind.name, "device", kind.count / steps, kind.total / steps
