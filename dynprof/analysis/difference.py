"""Two captures against each other: what grew, by count and by time, in each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.analysis.kernels import kinds
from dynprof.analysis.operators import STEP, averages
from dynprof.analysis.steps import marked_steps

if TYPE_CHECKING:
    from dynprof.analysis.capture import Capture
    from dynprof.analysis.kernels import Kind
    from dynprof.analysis.operators import Average


@dataclass(frozen=True)
class Growth:
    """How one name changed from the first capture to the second, in each step.

    Attributes:
        name: Of operators of the host, or of kernels of a device.
        where: ``host`` or ``device``.
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


def step_ns(capture: Capture) -> float:
    """Return the mean duration of a step, in ns."""
    lengths = [length for _, _, length in marked_steps(capture.trace)]
    return sum(lengths) / max(1, len(lengths))


def why_not_comparable(one: Capture, other: Capture) -> list[str]:
    """Say what makes the numbers of two captures mean different things."""
    theirs = _recorded(other)
    return [
        f"only the {'first' if there else 'second'} has {what}"
        for what, there in _recorded(one).items()
        if there != theirs[what]
    ]


def _recorded(capture: Capture) -> dict[str, bool]:
    """Return what of the things that change the other numbers was recorded."""
    trace = capture.trace
    return {
        "the host's Python frames": bool(trace.category("python_function").any()),
        "shapes of operators": len(trace.tables["dims"]) > 1,
        "memory events": len(trace.memory["time"]) > 0,
        "a device": bool(trace.category("kernel").any()),
        "calls of Python in the place of operators": bool(trace.category("fee").any()),
        "marked steps": any(number is not None for number, _, _ in marked_steps(trace)),
    }


def growths(one: Capture, other: Capture) -> list[Growth]:
    """Return every name that changed, what costs a step most first."""
    found = []
    tables = {
        "host": [{row.name: (row.count, row.own) for row in _host(c)} for c in (one, other)],
        "device": [{row.name: (row.count, row.total) for row in _device(c)} for c in (one, other)],
    }
    steps = [max(1, len(marked_steps(capture.trace))) for capture in (one, other)]
    for where, (before, after) in tables.items():
        for name in dict.fromkeys((*before, *after)):
            pairs = [table.get(name, (0, 0)) for table in (before, after)]
            counts, times = (
                (pairs[0][part] / steps[0], pairs[1][part] / steps[1]) for part in (0, 1)
            )
            if counts[0] != counts[1] or times[0] != times[1]:
                found.append(Growth(name, where, counts, times))
    return sorted(found, key=lambda growth: -abs(growth.cost_ns))


def _host(capture: Capture) -> list[Average]:
    """Return the operators; what is left of a step beside them is the step's own growth."""
    rows = averages(capture.trace, capture.operators)
    return [row for row in rows if not row.name.startswith(STEP[:-1])]


def _device(capture: Capture) -> list[Kind]:
    return [row for row in kinds(capture.trace, capture.operators) if row.core != "HOST"]
