"""The newest window below a path, and its newest trace; broken or empty ones are passed over."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.one_trace import traces_in
from dynprof.analysis.runs.recorded_window import captured_below, first_few, why_no_capture
from dynprof.errors import CaptureError
from dynprof.runtime.job_files import files_below, written_s
from dynprof.runtime.layout import INFO_DIR, WINDOW_RECORD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def newest_window(path: Path) -> tuple[Path, list[str]]:
    """Return the path to read for a command's argument, and the newer windows that are passed over.

    For a folder this is the record of its newest window if that has no trace here, else the folder
    itself. Windows without any capture do not count if another one has one, here or elsewhere.
    """
    if not path.is_dir():
        return path, []
    traces = _traces_below(path)
    records, passed_over = _newer(path, traces), list[str]()
    for record in records:
        if not (why := why_no_capture(record)):
            return record, first_few(passed_over, "more window")
        passed_over.append(f"{record.parent.parent.name}: {why}")
    if records and not traces:
        return records[0], []
    return path, first_few(passed_over, "more window")


def _traces_below(path: Path) -> list[Path]:
    try:
        return traces_in(path)
    except CaptureError:
        return []


def _newer(path: Path, traces: Sequence[Path]) -> list[Path]:
    """Return the records of the windows that are newer than all traces, newest first."""
    wanted = (INFO_DIR, WINDOW_RECORD)
    records = [file for file in files_below(path) if file.parts[-2:] == wanted]
    folders = {trace.parent for trace in traces}
    newest_s = max(map(written_s, traces), default=0.0)
    newer = itertools.takewhile(
        lambda record: written_s(record) > newest_s and record.parent.parent not in folders,
        sorted(records, key=written_s, reverse=True),
    )
    return list(newer)


def newest_measured(path: Path) -> tuple[MeasuredTrace, dict[Path, str]]:
    """Return the newest trace of those that :func:`captured_below` finds.

    Returns:
        The trace, and the reasons why newer files were passed over, by their paths.

    Raises:
        CaptureError: There is no trace that can be read.
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
