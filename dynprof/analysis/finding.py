"""Something that costs a step time, and how much of a step it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.analysis.intervals import clipped, cover, covered

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dynprof.analysis.capture import Capture

LEAST = 0.03
"""A finding is worth a line from this share of a step on."""
LARGE = 0.25
"""From this share of a step on, one operator or one phase is worth naming."""
SMALL_NS = 10_000
"""Starting an operator or a kernel takes the host about this long."""


@dataclass(frozen=True)
class Finding:
    """Something to look at.

    Attributes:
        title: What it is, in a few words.
        share: What it takes, from 0 to 1.
        detail: The figures, in a sentence.
        advice: What to try.
        of: What it takes that share of.
        weight: How bad it is; the share of a step that is as bad.
    """

    title: str
    share: float
    detail: str
    advice: str
    of: str = "a step"
    weight: float = -1

    @property
    def badness(self) -> float:
        """How bad it is, for sorting."""
        return self.share if self.weight < 0 else self.weight

    def __str__(self) -> str:
        return f"{self.title}: {self.detail} {self.advice}"


def in_steps(capture: Capture, chosen: NDArray[np.bool_]) -> tuple[float, float]:
    """Return for how long spans cover a step, in the mean, and how many begin in it."""
    spans = capture.trace.spans
    start = spans["start"][chosen]
    where = cover(start, start + spans["length"][chosen])
    time, count = 0, 0
    for _, begin, length in capture.marked:
        time += covered(clipped(where, begin, begin + length))
        count += int(((start >= begin) & (start < begin + length)).sum())
    steps = max(1, len(capture.marked))
    return time / steps, count / steps
