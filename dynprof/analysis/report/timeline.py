"""The timeline of a report: steps, phases, threads and streams, as few enough slices to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynprof.analysis.measures.critical_path import PARTS
from dynprof.analysis.measures.idle import streams
from dynprof.analysis.measures.timeline.breakdown import (
    COMMUNICATION,
    COMPUTING,
    COPYING,
    ITERATION,
    RECORDING,
)
from dynprof.analysis.measures.timeline.phase_times import PRECEDENCE, where_phase
from dynprof.analysis.measures.timeline.steps import host_communication
from dynprof.analysis.reading.events import COPIES, LAUNCHES, MEMSETS, OPERATORS
from dynprof.analysis.reading.spans import united, without

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

MAX_SLICES = 20_000  # On the page: some 300 kB, which a browser draws within a frame.
LONGEST_NAME = 200  # Characters; a kernel's name with its templates may have thousands.
MAX_THREADS, MAX_STREAMS = 6, 16  # The busiest ones; more do not fit on a screen.
STEP, OPERATOR, CALL = "step", "operators", "runtime calls"
KINDS = (*dict.fromkeys((STEP, *PRECEDENCE, RECORDING, OPERATOR, CALL, COMPUTING, COMMUNICATION,
                         COPYING, *PARTS)),)  # fmt: skip
"""What a slice shows; each kind has a colour."""


class Track(NamedTuple):
    """Slices in one row, by start; times in ns, names as indexes, kinds as places in ``KINDS``."""

    title: str
    start: Numbers
    length: Numbers
    name: Numbers
    kind: Numbers


def timeline(measured: MeasuredTrace) -> dict[str, Any] | None:
    """Return the tracks of a trace, with times in ns; None if nothing would be on them.

    A slice is four numbers: the time since the slice before it ended, its length, the index of its
    name, and its kind. If there are too many, slices that are shorter than the resolution are
    merged with others of their kind. The length is then the sum of theirs, and the name is minus
    the number of slices.
    """
    texts = list(measured.trace.tables["name"])
    threads, left_threads = _threads(measured)
    on_devices, left_streams = _streams(measured)
    tracks = [
        _steps(measured, texts), _critical_path(measured, texts), _phases(measured, texts),
        *threads, *on_devices,
    ]  # fmt: skip
    tracks = [track for track in tracks if len(track.start)]
    if not tracks:
        return None
    begin = min(int(track.start.min()) for track in tracks)
    end = max(int((track.start + track.length).max()) for track in tracks)
    resolution, drawn = 0, tracks
    while sum(len(track.start) for track in drawn) > MAX_SLICES:
        resolution = max(2 * resolution, (end - begin) // MAX_SLICES, 1)
        drawn = [_merged(track, begin, resolution) for track in tracks]
    names = np.concatenate([track.name for track in drawn])
    used = np.unique(names[names >= 0])
    return {
        "begin": begin - int(measured.trace.spans["start"].min()),
        "length": end - begin,
        "kinds": KINDS,
        "names": [texts[name][:LONGEST_NAME] for name in used.tolist()],
        "tracks": [[track.title, _slices(track, begin, used)] for track in drawn],
        "resolution": resolution,
        "left_out": [left_threads, left_streams],
        "file": measured.path.name,
    }


def _slices(track: Track, begin: int, used: Numbers) -> list[int]:
    gaps = track.start - np.concatenate([[begin], (track.start + track.length)[:-1]])
    names = np.where(track.name < 0, track.name, np.searchsorted(used, track.name))
    table = np.stack([gaps, track.length, names, track.kind], axis=1)
    numbers: list[int] = table.ravel().tolist()
    return numbers


def _merged(track: Track, begin: int, resolution: int) -> Track:
    """Return a track whose slices that are shorter than the resolution are merged."""
    short = track.length < resolution
    buckets = (track.start[short] - begin) // resolution * len(KINDS) + track.kind[short]
    _, first, which = np.unique(buckets, return_index=True, return_inverse=True)
    count = np.bincount(which)
    merged = (
        track.start[short][first],
        np.bincount(which, track.length[short]).astype(np.int64),
        np.where(count > 1, -count, track.name[short][first]),
        track.kind[short][first],
    )
    columns = [
        np.concatenate([one[~short], other]) for one, other in zip(track[1:], merged, strict=True)
    ]
    order = np.argsort(columns[0], kind="stable")
    return Track(track.title, *(column[order] for column in columns))


def _steps(measured: MeasuredTrace, texts: list[str]) -> Track:
    marked = [step for step in measured.marked if step[0] is not None]
    first = len(texts)
    texts += [_name_of(measured, step) for step in marked]
    columns = np.array([(begin, length) for _, begin, length in marked], np.int64).reshape(-1, 2)
    names = np.arange(first, first + len(marked))
    title, kinds = f"{measured.breakdown.noun}s", np.zeros_like(names)
    return Track(title, columns[:, 0], columns[:, 1], names, kinds)


def _name_of(measured: MeasuredTrace, step: MarkedStep) -> str:
    label = measured.iterations.get(step)
    return f"{label.kind} {ITERATION} {step[0]}" if label else f"step {step[0]}"


def _critical_path(measured: MeasuredTrace, texts: list[str]) -> Track:
    nothing = np.zeros(0, np.int64)
    if (path := measured.critical_path) is None or path.on_host:  # then it is the main thread
        return Track("critical path", nothing, nothing, nothing, nothing)
    found, first = path.segments, len(texts)
    texts += PARTS
    kinds = np.array([KINDS.index(part) for part in PARTS], np.int64)[found.part]
    names = np.where(found.name < 0, first + found.part, found.name)
    return Track("critical path", found.begin, found.end - found.begin, names, kinds)


def _phases(measured: MeasuredTrace, texts: list[str]) -> Track:
    """Return the phases of the host, and when the profiler itself works.

    Where several cover a moment, the first one counts, as in the phases of the steps.
    """
    found: list[Numbers] = []
    covers = {RECORDING: measured.breakdown.recording}
    covers |= {phase: where_phase(measured.trace, phase) for phase in PRECEDENCE}
    earlier: list[Cover] = []
    for phase, where in covers.items():
        begins, ends = without(where, united(*earlier)) if earlier else where
        earlier.append(where)
        row = np.broadcast_to([[len(texts)], [KINDS.index(phase)]], (2, len(begins)))
        found.append(np.concatenate([[begins, ends - begins], row]))
        texts.append(phase)
    columns = np.concatenate(found, axis=1)
    columns = columns[:, np.argsort(columns[0], kind="stable")]
    return Track("phases", *columns)


def _threads(measured: MeasuredTrace) -> tuple[list[Track], int]:
    """Return the outermost calls of the busiest threads, and how many threads are left out."""
    trace = measured.trace
    chosen = trace.category(OPERATORS, LAUNCHES) | host_communication(trace)
    found = []
    for thread in np.unique(trace.spans["thread"][chosen]).tolist():
        spans = np.flatnonzero(chosen & (trace.spans["thread"] == thread))
        ends = np.maximum.accumulate(trace.spans["start"][spans] + trace.spans["length"][spans])
        outer = np.append([True], trace.spans["start"][spans][1:] >= ends[:-1])
        found.append(_track(trace, f"thread {trace.tables['thread'][thread][1]}", spans[outer]))
    return _busiest(found, MAX_THREADS)


def _streams(measured: MeasuredTrace) -> tuple[list[Track], int]:
    """Return the work of the busiest streams, and how many are left out."""
    trace, work = measured.trace, np.sort(measured.launches.work)
    found = []
    both = streams(trace, measured.launches)
    devices = len({device for device, _ in both}) > 1
    for device, stream in both:
        here = (trace.spans["device"][work] == device) & (trace.spans["stream"][work] == stream)
        title = f"device {device}, stream {stream}" if devices else f"stream {stream}"
        found.append(_track(trace, title, work[here]))
    return _busiest(found, MAX_STREAMS)


def _track(trace: Trace, title: str, spans: Numbers) -> Track:
    kind = np.full(len(spans), KINDS.index(COMPUTING))
    for shown, which in (
        (OPERATOR, trace.category(OPERATORS)),
        (CALL, trace.category(LAUNCHES)),
        (COPYING, trace.category(COPIES, MEMSETS)),
        (COMMUNICATION, trace.communication | host_communication(trace)),
    ):
        kind[which[spans]] = KINDS.index(shown)
    start, length, name = (trace.spans[column][spans] for column in ("start", "length", "name"))
    return Track(title, start, length, name, kind)


def _busiest(tracks: Sequence[Track], most: int) -> tuple[list[Track], int]:
    """Return the tracks with the most time, in their order, and the number of the others."""
    by_time = sorted(tracks, key=lambda track: -int(track.length.sum()))[:most]
    kept = [track for track in tracks if any(track is one for one in by_time)]
    return kept, len(tracks) - len(kept)
