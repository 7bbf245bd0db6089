"""A finding: something that costs a step time, and the share of a step that it takes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.events import CALLS, FRAMES
from dynprof.analysis.reading.spans import clipped
from dynprof.runtime.layout import CONFIG_NAME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.critical_path import Removal
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown
    from dynprof.analysis.reading.spans import Cover

Moment = tuple[int, int]
"""A start and a duration, in ns."""
MIN_FINDING_SHARE = 0.03
"""Share of a step from which a finding is worth a line."""
LARGE = 0.25
"""Share of a step from which one operator or one phase is worth naming."""
OF_A_STEP = "a step"
SMALL_NS = 10_000
"""About the time in ns that the host needs to start an operator or a kernel."""
RANKS_FIRST = (
    "First see whether one rank keeps the others waiting: that rank is the cause. Otherwise try "
)
"""Start of the advice if no other rank is known."""
OUT_OF_THE_LOOP = "Take that out of the loop, do it less often, or in another thread or process."
"""Advice if the line is named."""
OF_THE_STEP = (
    "Most of the step runs there: look in the flame graph for the calls that take long; try "
    "torch.compile, CUDA graphs or a larger batch."
)
"""Advice if the line is that of the training loop or of the whole forward pass."""


@dataclass(frozen=True)
class Finding:
    """Something that costs time or memory.

    Attributes:
        title: What it is, in a few words.
        share: The share that it takes, from 0 to 1.
        detail: The figures, in a sentence.
        advice: What to try.
        of: What the share refers to, by default a step, or the trace if it has no steps.
        weight: How bad it is, as a share of a step; negative if that is ``share``.
        removal: What costs nothing without it, for the critical path, which knows what else takes
            as long; None if the path does not have it.
        most: What a step would save at most, in ns; negative if that is its share.
        without: The start of the sentence on what a step would save.
        saves: What a step would save at most, in a sentence; empty if it is not of a step.
        by_line: Whether it could name a line of the user's code if stacks were recorded.
        place: The function, line or operator that it names first. Empty if it names none, or if
            the cause is the same in any place.
        at: When its longest part began since the trace's base time, and how long it lasted, in ns;
            None if it has no such part.
    """

    title: str
    share: float
    detail: str
    advice: str
    of: str = OF_A_STEP
    weight: float = -1
    removal: Removal | None = field(default=None, compare=False, repr=False)
    most: float = -1
    without: str = "Without it"
    saves: str = ""
    by_line: bool = True
    place: str = ""
    at: Moment | None = None

    @property
    def severity(self) -> float:
        """How bad it is, for sorting."""
        return self.share if self.weight < 0 else self.weight

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.title}:", self.detail, self.saves, self.advice)))


def longest(measured: MeasuredTrace, chosen: NDArray[np.bool_]) -> Moment | None:
    """Return when the longest of some spans in the steps ran; None if there is none."""
    spans, place = measured.trace.spans, np.flatnonzero(chosen & measured.in_steps)
    if not len(place):
        return None
    found = place[spans["length"][place].argmax()]
    return int(spans["start"][found]), int(spans["length"][found])


def longest_part(steps: Breakdown, where: Cover) -> Moment | None:
    """Return the longest part of a cover that is in one step; None if there is none."""
    parts = [clipped(where, begin, begin + length) for _, begin, length in steps.steps]
    spans = [
        (begin, end - begin)
        for starts, ends in parts
        for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return max(spans, key=lambda span: span[1], default=None)


def how_many(measured: MeasuredTrace, steps: Breakdown, chosen: NDArray[np.bool_]) -> float:
    """Return the average number of spans of the job's steps that begin in a step."""
    start = measured.trace.spans["start"][chosen & ~measured.from_before]  # ascending
    edges = np.array([(begin, begin + length) for _, begin, length in measured.marked], np.int64)
    places = np.searchsorted(start, edges.reshape(-1, 2))
    return int((places[:, 1] - places[:, 0]).sum()) / max(1, steps.count)


def has_stacks(measured: MeasuredTrace) -> bool:
    """Return whether the trace has Python frames, which findings need to name lines."""
    return bool(measured.trace.category(FRAMES, CALLS).any())


def stacks_command(measured: MeasuredTrace) -> str:
    """Return the command that records the job with stacks; for a script's own trace the setting."""
    manifest, directory = measured.manifest, job_directory(measured)
    if manifest is None or not directory:
        return "with_stack=True"
    option = "--backend python" if manifest.backend == "marks" else "--with-stack"
    return f"dynprof arm {directory} {option}"


def job_directory(measured: MeasuredTrace) -> str:
    """Return the directory of the job's config for a shell; empty for a script's own trace.

    It is the one that the trace is in, or ``DIR`` if that has no config.
    """
    manifest = measured.manifest
    if manifest is None or not manifest.request.sha256:  # no config requested it
        return ""
    folder = measured.path.parent.parent
    return shlex.quote(str(folder)) if (folder / CONFIG_NAME).is_file() else "DIR"
