"""What the record of a window of several ranks adds to the traces next to it.

Ranks that share no disk leave their captures on their own disks. Only the leader's ``window.json``
lists them all, and the missing ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.read_trace import find_manifest
from dynprof.analysis.runs.one_trace import newest_in, traces_in
from dynprof.errors import CaptureError, describe
from dynprof.runtime.job_files import age_key, files_below, may_be_read, written_s
from dynprof.runtime.layout import (
    INFO_DIR,
    ROLE,
    WINDOW_RECORD,
    is_vendors_view,
    rank_in_name,
)
from dynprof.runtime.plural import counted, listed_ranks, spanned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dynprof.analysis.runs.remote_files import Workspace
    from dynprof.captures.manifest import Manifest
    from dynprof.captures.window_record import RankRecord, WindowRecord

MAX_WORDS = 8
"""Remarks on a window that are shown, and sentences about its ranks, at most."""
MAX_BASELINES = 2
"""Baselines that may be newer than the window of a request, for a report on a folder to show it."""
_FOLDER = re.compile(rf"step_\d+-\d+(_\d{{8}}T\d{{6}}Z(?:_{ROLE})?)")
"""Matches the names of ``window_dir_name``; each role of a job has its own windows."""


def captured_below(path: Path) -> list[Path]:
    """Return the traces of ``path``: a folder, the record of a window, or a trace.

    Raises:
        CaptureError: There is none.
    """
    if is_lone_record(path):
        return traces_of_record(path)
    return traces_in(path.parent.parent if path.name == WINDOW_RECORD else path)


def is_lone_record(path: Path) -> bool:
    """Return whether a path is the record of a window that has no trace next to it."""
    if path.name != WINDOW_RECORD:
        return False
    folder = path.parent.parent
    try:
        return all(trace.parent != folder for trace in traces_in(folder))
    except CaptureError:
        return True


def traces_of_record(record_path: Path) -> list[Path]:
    """Return the traces of a window that has only its record in its folder.

    Raises:
        CaptureError: None is on this machine; the message says why for each rank, and where it is.
    """
    if traces := named_traces(record_path):
        return traces
    try:
        words = _words(record_path, traces)
    except OSError as error:
        words = [describe(error)]
    raise CaptureError("\n".join((f"{record_path} names no capture that is here", *words)))


def why_no_capture(record_path: Path) -> str:
    """Return why a window that has only its record in its folder has no capture anywhere.

    Empty if a capture is here, or was saved elsewhere.
    """
    try:
        record = _load_record(record_path)
    except CaptureError as error:
        return str(error).partition("\n")[0]
    if any(one.outcome == "saved" for one in record.ranks.values()) or named_traces(record_path):
        return ""
    reasons: dict[str, list[int]] = {}
    for rank in record.asked:
        is_told = rank in record.ranks
        why = record.outcome(rank, record_path) if is_told else record.missing.get(rank, "")
        reasons.setdefault(why, []).append(rank)
    told = ", ".join(f"{listed_ranks(ranks)} ({why})" for why, ranks in reasons.items())
    return f"no capture is here of {told}"


def record_in(folder: Path) -> Path | None:
    """Return the record in the folder of a window, if it has one."""
    path = folder / INFO_DIR / WINDOW_RECORD
    return path if may_be_read(path) else None


def named_traces(record_path: Path) -> list[Path]:
    """Return the traces that the record of a window names and this machine has, by rank.

    Only traces of the record's owner count: a record must not make others read foreign files.
    """
    try:
        return list(_by_rank(record_path, _load_record(record_path)).values())
    except (CaptureError, OSError):
        return []


def _by_rank(record_path: Path, record: WindowRecord) -> dict[int, Path]:
    owner = record_path.lstat().st_uid
    found = {rank: _trace_of(record, rank, owner) for rank in sorted(record.ranks)}
    return {rank: trace for rank, trace in found.items() if trace}


def requested_ranks(traces: Sequence[Path], place: Workspace) -> Callable[[int], Iterable[int]]:
    """Return a function that maps the job's number of ranks to those that were requested.

    The source is the window's record, else the config of its newest trace; without both, all ranks
    were requested.
    """
    if path := record_in(place.folder):
        with contextlib.suppress(CaptureError, OSError):
            record = _load_record(place.fetch(path))
            return lambda _: record.asked
    manifest = find_manifest(traces[-1])[1]
    return manifest.request.selected_ranks if manifest else range


def record_words(traces: Sequence[Path]) -> list[str]:
    """Return sentences about a window from its record.

    They are its remarks, the ranks that are not among its traces, and those that lack steps.
    """
    folders = dict.fromkeys(trace.parent for trace in traces)
    path = next(filter(None, map(record_in, folders)), None)
    try:
        return _words(path, traces) if path else []
    except (CaptureError, OSError) as error:
        return [describe(error)]


def _load_record(path: Path) -> WindowRecord:
    """Return the record of a window.

    Raises:
        CaptureError: It cannot be read.
    """
    from dynprof.captures.window_record import load_window_record  # takes as long as numpy's

    return load_window_record(path)


def _words(record_path: Path, traces: Sequence[Path]) -> list[str]:
    record = _load_record(record_path)
    here, there = _by_rank(record_path, record), {trace.absolute() for trace in traces}
    with_trace = {rank for rank, trace in here.items() if trace in there}
    if set(record.asked) - with_trace:
        with_trace |= _recorded(traces)
    of_ranks = [
        text
        for rank in dict.fromkeys(record.asked)
        for text in _of(record_path, record, rank, with_trace)
    ]
    return [*first_few(record.remarks, "more remark"), *first_few(of_ranks, "more rank")]


def _recorded(traces: Sequence[Path]) -> set[int]:
    """Return the ranks of these traces: the record may be older than they, if a disk was full."""
    found = (find_manifest(trace)[1] for trace in traces)
    return {manifest.rank for manifest in found if manifest}


def _of(record_path: Path, record: WindowRecord, rank: int, with_trace: set[int]) -> Iterator[str]:
    """Yield sentences about what is wrong with a rank."""
    one = record.ranks.get(rank)
    if rank in record.missing and rank in with_trace:
        yield f'rank {rank}: its capture is here, though the record says "{record.missing[rank]}"'
    elif rank in record.missing:
        yield f"rank {rank} is missing: {record.missing[rank]}"
    elif one and rank not in with_trace:
        if one.outcome == "saved":
            yield f"rank {rank}: its capture is on {one.host}, {one.capture}"
        else:
            how = record.outcome(rank, record_path)
            yield f"rank {rank} has no capture: {how}, by its last report to rank 0"
    if one and one.cut:
        yield f"rank {rank} was cut short: {one.cut}"


def first_few(words: Sequence[str], noun: str) -> list[str]:
    """Return the first sentences, and how many more there are."""
    more = len(words) - MAX_WORDS
    return [*words[:MAX_WORDS], *([f"and so for {counted(more, noun)}"] if more > 0 else [])]


def _trace_of(record: WindowRecord, rank: int, owner: int) -> Path | None:
    """Return the trace of a rank, if the record names it and this machine has that capture."""
    from dynprof.captures.manifest import load_manifest  # its import takes as long as numpy's

    one = record.ranks[rank]
    with contextlib.suppress(CaptureError, OSError, ValueError):
        path = Path(one.capture)
        manifest = load_manifest(path) if path.is_absolute() and may_be_read(path) else None
        if manifest and manifest.trace and _is_capture_of(record, rank, one, manifest):
            trace = path.parent.parent / Path(manifest.trace).name
            owners = {path.lstat().st_uid, trace.lstat().st_uid}
            return trace if owners == {owner} and may_be_read(trace) else None
    return None


def _is_capture_of(record: WindowRecord, rank: int, one: RankRecord, manifest: Manifest) -> bool:
    """Return whether a manifest is the rank's own, not one that has the same path by chance."""
    same = manifest.request.edited_at, manifest.request.sha256
    wanted = record.request.edited_at, record.request.sha256
    return (manifest.rank, manifest.host, same) == (rank, one.host, wanted)


def newest_window(path: Path) -> tuple[Path, list[str]]:
    """Return the path to read for a command's argument, and the newer windows that are passed over.

    For a folder this is the record of its newest window if that has no trace here, else the folder
    itself. Windows without any capture do not count if another one has one, here or elsewhere.
    Baselines do not count if one of the :data:`MAX_BASELINES` windows before them is none.
    """
    if not path.is_dir():
        return path, []
    traces = _traces_below(path)
    if requested := _before_baselines(path, traces):
        return requested, []
    records, passed_over = _newer(path, traces), list[str]()
    for record in records:
        if not (why := why_no_capture(record)):
            return record, first_few(passed_over, "more window")
        passed_over.append(f"{record.parent.parent.name}: {why}")
    if records and not traces:
        return records[0], []
    return path, first_few(passed_over, "more window")


def _before_baselines(path: Path, traces: Sequence[Path]) -> Path | None:
    """Return the newest window that is no baseline, if only a few baselines are newer.

    None if the newest window is none, or if more are newer.
    """
    folders = dict.fromkeys(trace.parent for trace in sorted(traces, key=age_key, reverse=True))
    for place, folder in enumerate(itertools.islice(folders, MAX_BASELINES + 1)):
        trace = next(trace for trace in traces if trace.parent == folder)
        manifest = find_manifest(trace)[1]
        if manifest is None or not manifest.is_baseline:
            return folder if place and manifest and folder != path else None
    return None


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
    newest = max(map(age_key, traces), default=(0.0, 0.0))
    newer = itertools.takewhile(
        lambda record: age_key(record) > newest and record.parent.parent not in folders,
        sorted(records, key=age_key, reverse=True),
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
    for trace in sorted(captured_below(path), key=age_key, reverse=True):
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


def lowest_measured(path: Path) -> tuple[MeasuredTrace, list[int], dict[Path, str]]:
    """Return the trace of the lowest rank of the newest window that can be read.

    If the ranks are not in manifests or names, it is the newest trace, whatever its rank.

    Returns:
        The trace, all ranks of its window, and the reasons why files were passed over.

    Raises:
        CaptureError: There is no trace that can be read.
    """
    problems: dict[Path, str] = {}
    ranks = _ranks_by_name(path)
    for rank in sorted(ranks):
        try:
            measured = MeasuredTrace(ranks[rank])
        except CaptureError as error:
            problems[ranks[rank]] = str(error)
            continue
        if len(measured.trace.spans["start"]):
            return measured, sorted(ranks), problems
        problems[ranks[rank]] = f"{ranks[rank]} holds no event with a duration"
    measured, more = newest_measured(path)
    return measured, [measured.rank], {**problems, **more}


def _ranks_by_name(path: Path) -> dict[int, Path]:
    """Return the traces of the newest window by rank; empty for one trace, or an unknown rank."""
    if path.is_file() and path.name != WINDOW_RECORD:
        return {}
    found: dict[int, Path] = {}
    for trace in sorted(window_below(path), key=written_s, reverse=True):  # the newest of a rank
        manifest = find_manifest(trace)[1]
        rank = manifest.rank if manifest else rank_in_name(trace.name)
        if rank is None:
            return {}
        found.setdefault(rank, trace)
    return found


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
    here = [trace for trace in traces_in(path) if _place(trace) == _place(newest)]
    others = [trace for folder in _folders_of_same_edit(newest.parent) for trace in _traces(folder)]
    wanted = _request(newest) if others else None
    if wanted is None:
        return here
    joined = [trace for trace in others if _request(trace) == wanted]
    return [*(trace for trace in here if not joined or _request(trace) in (wanted, None)), *joined]


def _place(trace: Path) -> Path:
    """Return the folder of the traces of a window. With torch_npu each rank has one inside it."""
    return trace.parents[2] if is_vendors_view(trace) else trace.parent


def _folders_of_same_edit(folder: Path) -> list[Path]:
    """Return the folders next to this one whose names have an edit in the same second."""
    own = _FOLDER.fullmatch(folder.absolute().name)
    if own is None:
        return []
    found = folder.absolute().parent.glob(f"step_*{own[1]}")
    return sorted(
        other for other in found
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


def window_named(manifest: Manifest | None) -> str:
    """Return the steps of a window and when it was recorded; empty without a manifest."""
    if manifest is None:
        return ""
    from dynprof.captures.baselines import opened_at  # its import takes as long as numpy's

    at = opened_at(manifest)
    when = f", recorded {at:%Y-%m-%d %H:%M:%S}" if at else ""
    kind = ", a baseline" if manifest.is_baseline else ""
    return f"{spanned(manifest.steps.first, manifest.steps.last)}{when}{kind}"


def window_words(traces: Sequence[Path]) -> list[str]:
    """Return sentences on the traces of one window: joined folders, and missing ranks."""
    folders = sorted({trace.absolute().parent for trace in traces})
    names = sorted({folder.name for folder in folders})
    joined = [f"joined by their request: {', '.join(names)}"] if len(names) > 1 else []
    return joined + record_words(traces)
