"""What the record of a window of several ranks adds to the traces that lie beside it.

Ranks that share no disk leave their captures where each of them watches; only ``window.json``,
where the leader watches, knows them all, and who is missing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.analysis.runs.one_trace import traces_in
from dynprof.captures.manifest import load_manifest
from dynprof.captures.window_record import load_window_record
from dynprof.errors import CaptureError
from dynprof.files.layout import INFO_DIR, WINDOW_RECORD
from dynprof.plural import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynprof.captures.manifest import Manifest
    from dynprof.captures.window_record import RankRecord, WindowRecord

MOST_WORDS = 8
"""Ranks of which it is said where their captures lie."""


def captured_below(path: Path) -> list[Path]:
    """Return the traces in a folder, of which ``path`` may be the record, or the one that it is.

    Where the newest window there is one of which only the record lies there, as on a leader that
    was not asked to record, they are those that it names.

    Raises:
        CaptureError: There is none.
    """
    alone = record_alone(path)
    if alone is None:
        return traces_in(path.parent.parent if path.name == WINDOW_RECORD else path)
    traces = named_traces(alone)
    if not traces:
        words = "; ".join(_not_among(alone, traces))
        raise CaptureError(f"{alone} names no capture that is here: {words}")
    return traces


def record_alone(path: Path) -> Path | None:
    """Return the record of the newest window below a path, if no trace lies beside it."""
    if path.name == WINDOW_RECORD:
        records = [path]
    else:
        records = list(path.rglob(f"{INFO_DIR}/{WINDOW_RECORD}")) if path.is_dir() else []
    if not records:
        return None
    newest = max(records, key=_written_s)
    try:
        traces = traces_in(path if path.is_dir() else newest.parent.parent)
    except CaptureError:
        return newest
    is_newest = _written_s(newest) > max(map(_written_s, traces))
    beside = any(trace.parent == newest.parent.parent for trace in traces)
    return newest if is_newest and not beside else None


def record_beside(folder: Path) -> Path | None:
    """Return the record of the window that a folder is of, if it has one."""
    path = folder / INFO_DIR / WINDOW_RECORD
    return path if path.is_file() else None


def named_traces(record_path: Path) -> list[Path]:
    """Return the traces of a window that its record names and this machine has, by rank.

    Only those of the user whose the record is: nobody has others read what they may not.
    """
    try:
        return list(_by_rank(record_path, load_window_record(record_path)).values())
    except (CaptureError, OSError):
        return []


def _by_rank(record_path: Path, record: WindowRecord) -> dict[int, Path]:
    owner = record_path.stat().st_uid
    found = {rank: _trace_of(record, rank, owner) for rank in sorted(record.ranks)}
    return {rank: trace for rank, trace in found.items() if trace}


def words_on_others(traces: Sequence[Path]) -> list[str]:
    """Return what there is to say of the ranks of a window that are not among its traces."""
    folders = dict.fromkeys(trace.parent for trace in traces)
    path = next(filter(None, map(record_beside, folders)), None)
    try:
        return _not_among(path, traces) if path else []
    except (CaptureError, OSError) as error:
        return [str(error)]


def _not_among(record_path: Path, traces: Sequence[Path]) -> list[str]:
    record = load_window_record(record_path)
    here, there = _by_rank(record_path, record), {trace.absolute() for trace in traces}
    words = []
    for rank in dict.fromkeys(record.asked):
        one = record.ranks.get(rank)
        if rank in record.missing:
            words.append(f"rank {rank} is missing: {record.missing[rank]}")
        elif one and one.capture and here.get(rank) not in there:
            words.append(f"rank {rank}: its capture lies on {one.host}, {one.capture}")
    more = len(words) - MOST_WORDS
    return [
        *words[:MOST_WORDS],
        *([f"and so for {counted(more, 'more rank')}"] if more > 0 else []),
    ]


def _trace_of(record: WindowRecord, rank: int, owner: int) -> Path | None:
    """Return the trace of a rank, if what lies there on this machine is what the record names."""
    one = record.ranks[rank]
    with contextlib.suppress(CaptureError, OSError, ValueError):
        path = Path(one.capture)
        manifest = load_manifest(path) if path.is_absolute() and path.is_file() else None
        if manifest and manifest.trace and _is_of(record, rank, one, manifest):
            trace = path.parent.parent / Path(manifest.trace).name
            owners = {path.stat().st_uid, trace.stat().st_uid}
            return trace if owners == {owner} and trace.is_file() else None
    return None


def _is_of(record: WindowRecord, rank: int, one: RankRecord, manifest: Manifest) -> bool:
    """Tell a rank's capture from one that happens to have its path on another machine."""
    same = manifest.request.edited_at, manifest.request.sha256
    wanted = record.request.edited_at, record.request.sha256
    return (manifest.rank, manifest.host, same) == (rank, one.host, wanted)


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
