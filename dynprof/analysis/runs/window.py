"""The traces of one window: those of the newest folder, and of other folders of the same request.

If a rank sees an edit while another one is a step further, they record different steps, and their
traces are in different folders. Both names have the time of the edit, both manifests its request.
The record next to the leader's trace names the traces of ranks that share no disk.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dynprof.analysis.measures.timeline.read_trace import find_manifest
from dynprof.analysis.runs.one_trace import newest_in, traces_in
from dynprof.analysis.runs.recorded_window import (
    is_lone_record,
    named_traces,
    record_in,
    record_words,
    traces_of_record,
)
from dynprof.errors import CaptureError
from dynprof.runtime.layout import ROLE, WINDOW_RECORD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FOLDER = re.compile(rf"step_\d+-\d+(_\d{{8}}T\d{{6}}Z(?:_{ROLE})?)")
"""Matches the names of ``window_dir_name``; each role of a job has its own windows."""


def window_below(path: Path, newest: Path | None = None) -> list[Path]:
    """Return the traces of the newest window below a path, including its newest trace.

    Args:
        path: A folder, the record of a window, or a trace, which is then the only one.
        newest: The newest trace to use, if newer ones must be passed over.

    Raises:
        CaptureError: There is none.
    """
    if is_lone_record(path):
        return traces_of_record(path)
    if path.name == WINDOW_RECORD:
        path = path.parent.parent
    newest = newest or newest_in(path)
    if path.is_file():
        return [newest]
    together = _traces_of_window(path, newest)
    record = record_in(newest.parent)
    named = named_traces(record) if record else []
    known = {trace.absolute() for trace in together}
    return [*together, *(trace for trace in named if trace.absolute() not in known)]


def _traces_of_window(path: Path, newest: Path) -> list[Path]:
    """Return the traces of a window that are in its folder, and in folders next to it."""
    here = [trace for trace in traces_in(path) if trace.parent == newest.parent]
    others = [trace for folder in _folders_of_same_edit(newest.parent) for trace in _traces(folder)]
    wanted = _request(newest) if others else None
    if wanted is None:
        return here
    joined = [trace for trace in others if _request(trace) == wanted]
    return [*(trace for trace in here if not joined or _request(trace) in (wanted, None)), *joined]


def _folders_of_same_edit(folder: Path) -> list[Path]:
    """Return the folders next to this one whose names have an edit in the same second."""
    own = _FOLDER.fullmatch(folder.absolute().name)
    if own is None:
        return []
    beside = folder.absolute().parent.glob(f"step_*{own[1]}")
    return sorted(
        other for other in beside
        if other.name != folder.absolute().name and _FOLDER.fullmatch(other.name)
    )  # fmt: skip


def _traces(folder: Path) -> list[Path]:
    try:
        return [trace for trace in traces_in(folder) if trace.parent == folder]
    except CaptureError:  # only results are left there
        return []


def _request(trace: Path) -> tuple[str, str] | None:
    """Return the time and the hash of the edit that a trace was recorded for.

    Its number is not used: processes count edits from their own start.
    """
    manifest = find_manifest(trace)[1]
    return (manifest.request.edited_at, manifest.request.sha256) if manifest else None


def window_folder(path: Path, traces: Sequence[Path]) -> Path:
    """Return the folder for results of a whole window: that of its record, else its newest trace.

    Args:
        path: The path below which the window was found.
        traces: The traces of the window.
    """
    if is_lone_record(path):
        return path.parent.parent
    newest_first = sorted(traces, key=lambda trace: -trace.stat().st_mtime)
    folders = [trace.parent for trace in newest_first]
    return next(filter(record_in, folders), folders[0])


def window_words(traces: Sequence[Path]) -> list[str]:
    """Return sentences on the traces of one window: joined folders, and missing ranks."""
    folders = sorted({trace.absolute().parent for trace in traces})
    names = sorted({folder.name for folder in folders})
    joined = [f"joined by their request: {', '.join(names)}"] if len(names) > 1 else []
    return joined + record_words(traces)
