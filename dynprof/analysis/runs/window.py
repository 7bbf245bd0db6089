"""Which traces are of one window: those of the newest folder, and what other folders have of it.

A rank that sees an edit while another one is a step further records other steps, and so its trace
lies in another folder; both bear the time of the edit, and their manifests its request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dynprof.analysis.measures.timeline.read_trace import find_manifest
from dynprof.analysis.runs.one_trace import newest_in, traces_in
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FOLDER = re.compile(r"step_\d+-\d+(_\d{8}T\d{6}Z)")
"""As ``window_dir_name`` makes it."""


def window_below(path: Path, newest: Path | None = None) -> list[Path]:
    """Return the traces of the newest window below a path; the newest is among them.

    Args:
        path: A trace, which then is alone, or a folder.
        newest: Its newest trace, where others are to be passed over.

    Raises:
        CaptureError: There is none.
    """
    newest = newest or newest_in(path)
    if path.is_file():
        return [newest]
    here = [trace for trace in traces_in(path) if trace.parent == newest.parent]
    others = [trace for folder in _alike(newest.parent) for trace in _traces(folder)]
    wanted = _request(newest) if others else None
    if wanted is None:
        return here
    joined = [trace for trace in others if _request(trace) == wanted]
    return [*(trace for trace in here if not joined or _request(trace) in (wanted, None)), *joined]


def _alike(folder: Path) -> list[Path]:
    """Return the folders beside this one that are named for an edit of the same second."""
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
    except CaptureError:  # only what was made from one is left there
        return []


def _request(trace: Path) -> tuple[str, str] | None:
    """Return the time and the bytes of the edit that a trace was recorded for.

    Its number is that of its process, which may have begun later than the others.
    """
    manifest = find_manifest(trace)[1]
    return (manifest.request.edited_at, manifest.request.sha256) if manifest else None


def joined_words(traces: Sequence[Path]) -> list[str]:
    """Return, where traces of one window lie in several folders, that they were joined."""
    folders = sorted({trace.absolute().parent.name for trace in traces})
    return [f"joined by their request: {', '.join(folders)}"] if len(folders) > 1 else []
