"""The newest trace below a path that can be read: what is none does not stand in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.recorded_window import captured_below
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from pathlib import Path


def newest_measured(path: Path) -> tuple[MeasuredTrace, dict[Path, str]]:
    """Return the newest trace in a folder, as :func:`captured_below` has them.

    Returns:
        The trace, and why newer files were passed over, by their paths.

    Raises:
        CaptureError: There is none, or none that can be read.
    """
    problems: dict[Path, str] = {}
    empty: MeasuredTrace | None = None
    for trace in sorted(
        captured_below(path), key=lambda trace: trace.stat().st_mtime, reverse=True
    ):
        try:
            measured = MeasuredTrace(trace)
        except CaptureError as error:
            problems[trace] = str(error)
            continue
        if len(measured.trace.spans["start"]):
            return measured, problems
        problems[trace] = f"{trace} holds no event with a duration"
        empty = empty or measured
    if empty is None:
        raise CaptureError("\n".join(problems.values()))
    del problems[empty.path]
    return empty, problems
