"""The profiler's own work in a recorded step, identified by the files of its frames."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.events import CALLS, FRAMES, STEP_LABELS
from dynprof.analysis.reading.spans import distinct
from dynprof.runtime.modules import PACKAGE, around_calls, working_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.trace import Trace

DYNPROF, TORCH = "dynprof", "torch.profiler"
_START = r"(?:^|[/\\ (])"


def _frames_of(names: list[str]) -> re.Pattern[str]:
    """Return a pattern that finds the frames of some of dynprof's files and folders."""
    modules = "|".join(name.removesuffix(".py").replace("/", r"[/\\]") for name in names)
    return re.compile(rf"{_START}{PACKAGE.name}[/\\](?:{modules})(?:[/\\]\w+)*\.py\b")


_AROUND = _frames_of(around_calls())
_OWN = {
    DYNPROF: _frames_of(working_files()),
    TORCH: re.compile(rf"{_START}torch[/\\]profiler[/\\]\w+\.py\b"),
}
"""Matches frames of Kineto (``dynprof/runtime/threads.py(48): own_thread``) and VizTracer."""


def profiler_of(name: str) -> str:
    """Return the profiler that a frame belongs to; empty if none."""
    if "prof" not in name:  # Most names; a search in each would take longer.
        return ""
    return next((owner for owner, pattern in _OWN.items() if pattern.search(name)), "")


def is_dynprof_frame(name: str) -> bool:
    """Return whether a frame is dynprof's, including frames that call the job's own code."""
    return PACKAGE.name in name and (profiler_of(name) == DYNPROF or bool(_AROUND.search(name)))


def overhead(trace: Trace) -> NDArray[np.bool_]:
    """Return which spans are frames of a profiler, on threads that mark steps."""
    thread = trace.spans["thread"]
    working = np.isin(thread, distinct(thread[trace.category(STEP_LABELS)]))
    return (
        working & trace.category(FRAMES, CALLS) & trace.named(lambda name: bool(profiler_of(name)))
    )
