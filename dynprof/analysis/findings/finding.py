"""Something that costs a step time, and how much of a step it takes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.analysis.reading.categories import CALLS, FRAMES
from dynprof.runtime.layout import CONFIG_NAME

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown

LEAST = 0.03
"""A finding is worth a line from this share of a step on."""
LARGE = 0.25
"""From this share of a step on, one operator or one phase is worth naming."""
DELAYS = "delays of the device"
"""Stands for what a device could begin and does not, as a thing on the critical path."""
OF_A_STEP = "a step"
SMALL_NS = 10_000
"""Starting an operator or a kernel takes the host about this long."""
RANKS_FIRST = (
    "See first whether one rank keeps the others waiting: that rank is the cause. Else try "
)
"""Advice where no other rank is known."""
OUT_OF_THE_LOOP = "Take that out of the loop, do it less often, or in another thread or process."
"""Advice where the line is named."""


@dataclass(frozen=True)
class Finding:
    """Something to look at.

    Attributes:
        title: What it is, in a few words.
        share: What it takes, from 0 to 1.
        detail: The figures, in a sentence.
        advice: What to try.
        of: What it takes that share of; empty where that is a step, or the trace without any.
        weight: How bad it is; the share of a step that is as bad.
        on_path: What the critical path calls it, which knows what else takes as long.
        without: How a sentence on what a step would save begins.
        most: What a step would save at most, in ns; negative where that is its share.
        saves: What a step would save at most, in a sentence; empty where it is not of a step.
        by_line: Whether stacks would have it name a line of the user's code.
        place: The function, line or operator that it names first; empty where it names none,
            or where the cause is the same in any place.
    """

    title: str
    share: float
    detail: str
    advice: str
    of: str = OF_A_STEP
    weight: float = -1
    on_path: str = ""
    without: str = "Without it"
    most: float = -1
    saves: str = ""
    by_line: bool = True
    place: str = ""

    @property
    def badness(self) -> float:
        """How bad it is, for sorting."""
        return self.share if self.weight < 0 else self.weight

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.title}:", self.detail, self.saves, self.advice)))


def how_many(measured: MeasuredTrace, steps: Breakdown, chosen: NDArray[np.bool_]) -> float:
    """Return how many spans begin in a step on average."""
    start, count = measured.trace.spans["start"][chosen], 0
    for _, begin, length in measured.marked:
        count += int(((start >= begin) & (start < begin + length)).sum())
    return count / max(1, steps.count)


def has_stacks(measured: MeasuredTrace) -> bool:
    """Return whether the trace has Python frames, by which lines are named."""
    return bool(measured.trace.category(FRAMES, CALLS).any())


def stacks_command(measured: MeasuredTrace) -> str:
    """Return the command that records the job with stacks; of a script's own trace the setting.

    The directory is the one that the trace is in, or ``DIR`` where it has no config.
    """
    manifest = measured.manifest
    if manifest is None or not manifest.request.sha256:  # no config requested it
        return "with_stack=True"
    folder = measured.path.parent.parent
    directory = shlex.quote(str(folder)) if (folder / CONFIG_NAME).is_file() else "DIR"
    option = "--backend python" if manifest.backend == "marks" else "--with-stack"
    return f"dynprof arm {directory} {option}"
