"""Sections of a report, as plain data.

They are operators, modules, marks, categories, sequences, the roofline, waiting, iterations, the
critical path and bandwidth.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.communication import copies, traffic
from dynprof.analysis.measures.critical_path import (
    AT_HOST,
    COMMUNICATING,
    EARLIER,
    PARTS,
    PHASES,
    WAITING,
)
from dynprof.analysis.measures.critical_path import COMPUTING as KERNELS
from dynprof.analysis.measures.critical_path import COPYING as COPIES
from dynprof.analysis.measures.flops import DEVICE, peak_kind, roofline_point
from dynprof.analysis.measures.idle import QUEUED, gaps, idle, streams
from dynprof.analysis.measures.marks import KINDS, MOMENT
from dynprof.analysis.measures.queue import (
    EVENT,
    PERCENTILES,
    queue,
    queue_blockers,
    queue_reasons,
)
from dynprof.analysis.measures.sequence_sources import joined_names, sources
from dynprof.analysis.measures.timeline.breakdown import COMMUNICATION, COMPUTING, COPYING, ms
from dynprof.analysis.measures.timeline.operators import ITERATIONS, STEPS, averages
from dynprof.analysis.measures.timeline.overhead import profiler_of
from dynprof.analysis.measures.timeline.steps import MIN_RATIO, by_kind
from dynprof.analysis.reading.events import KERNELS as ALL_KERNELS
from dynprof.analysis.reading.events import SYNCHRONISATIONS
from dynprof.analysis.reading.spans import ROOT, clipped, covered
from dynprof.analysis.vendor_files.tables import shapes_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.critical_path import CriticalPath, WhatIf
    from dynprof.analysis.measures.flops import OperatorWork, Peak
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.queue import Queue
    from dynprof.analysis.measures.timeline.breakdown import Breakdown
    from dynprof.analysis.rank_comparison.comparison import Bandwidth, Ranks

    Numbers = NDArray[np.int64]


MAX_OPERATORS = 2000
"""Rows of operators, at most; the page says how many there are."""
MAX_ROWS = 500
"""Rows of marks, and of iterations, that are shown, at most."""
MAX_MODULES = 1000
"""Rows of modules, at most: those with the most time, and the modules around them."""
MAX_SEQUENCES = 25
"""Sequences of kernels that are shown, at most."""
MAX_ROOFLINE_ROWS = 300
"""Rows of the roofline, at most."""
LONGEST_SHAPES = 120
"""Characters of an operator's shapes, at most."""
MAX_STREAMS, MAX_BEHIND, MAX_POINTS = 32, 5, 600
"""Streams, calls behind a wait, and points of the queue's drawing, at most."""
Data = dict[str, Any]
MAX_STEPS, MAX_PATH_ROWS = 40, 100
"""Steps, and rows of the critical path, at most."""
_SHOWN = 0.005
"""Share of the path below which a part is not named in the sentence."""
_SAYS_MORE = 0.1
"""Difference between a share of the path and that of the busy device that is worth a sentence."""
_MOSTLY = 0.5
"""Share of the difference between two steps that explains it."""
_WORTH = 0.03
"""Share of a step below which a saving is not named in the sentence."""
_WORDS = {
    "between kernels": "gaps between kernels",
    "return to the host": "returning to the host",
    "unknown wait": "waiting for something unknown",
    "earlier work": "work from before the recording",
}
"""Names of parts in a sentence, if they differ."""
_DURATIONS_NS = np.array([2_000, 5_000, 10_000, 100_000, 1_000_000, 10_000_000])
_DURATION_NAMES = (
    "below 2 us", "2 to 5 us", "5 to 10 us", "10 to 100 us", "100 us to 1 ms", "1 to 10 ms",
    "10 ms and more",
)  # fmt: skip
"""Ranges of a kernel's duration. A launch takes a few us, so a host cannot keep up with the first.

A duration that is a limit belongs to the longer range.
"""
_SIZES, _TIMES = ("requests", "tokens"), ("time", "on_host", "busy")
"""Attributes of an iteration that are shown: of its label, and its own."""
_NAMELESS = {
    PARTS[AT_HOST]: "(outside of operators)",
    PARTS[WAITING]: "(unknown)",
    PARTS[EARLIER]: "(not in the trace)",
}
MAX_TRANSFERS, MAX_LINKS, WIDEST = 200, 200, 32
"""The most rows and links that are shown; with more ranks than ``WIDEST`` links have no matrix."""


def operators_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return counts and times in ms of operators and labels in the mean step of the host.

    The share is that of its self time in such a step. The device's time of a backward pass is the
    mean of the whole capture.
    """
    back = Counter[str]()
    for one in measured.passes:
        back[one.operator] += one.device
    each = max(1, len(measured.marked))
    length = sum(length for *_, length in measured.marked) or 1
    found = averages(measured.trace, measured.operators, measured.in_steps)
    rows: list[list[Any]] = [
        [
            row.name,
            row.count / each,
            row.self_ns / each / 1e6,
            row.self_ns / length,
            row.total_ns / each / 1e6,
            row.device_self_ns / each / 1e6,
            back[row.name] / each / 1e6 if row.name in back else None,
        ]
        for row in found
        if row.name not in (STEPS, ITERATIONS)
    ]
    rows.sort(key=lambda row: -row[2])
    return {
        "rows": rows[:MAX_OPERATORS],
        "count": len(rows),
        "devices": bool(len(measured.launches.work)),
        "of": measured.breakdown.a_step,
    }


def kernels_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return counts and times in ms by kernel and copy; kernels that communicate are apart."""
    found: dict[bool, list[list[Any]]] = {False: [], True: []}
    for kind in measured.kinds:
        if kind.core != "HOST":
            times = _ms(kind.total, kind.total // kind.count, kind.longest)
            row = [kind.name, kind.core.lower(), kind.count, *times]
            found[kind.core == "COMMUNICATION"].append(row)
    return {
        "rows": found[False][:MAX_OPERATORS],
        "communication": found[True][:MAX_OPERATORS],
        "count": len(found[False]),
    }


def _ms(*times: int | None) -> list[float | None]:
    return [None if time is None else time / 1e6 for time in times]


def marks(measured: MeasuredTrace) -> dict[str, Any]:
    """Return rows of name, kind, domain, count, first moment and times, in ms.

    Moments have no times. The first moment counts from the trace's first event.
    """
    trace, found = measured.trace, measured.marks
    kinds: dict[tuple[str, str, str], int] = {}
    both = zip(found.span.tolist(), found.kind.tolist(), found.domain, strict=True)
    code = [kinds.setdefault((trace.name(p), KINDS[k], d), len(kinds)) for p, k, d in both]
    places = np.array(code, np.int64)
    lengths, starts = (trace.spans[name][found.span] for name in ("length", "start"))
    rows = []
    for (name, kind, domain), number in kinds.items():
        chosen = places == number
        first = (int(starts[chosen].min()) - int(trace.spans["start"].min())) / 1e6
        row = [name, kind, domain, int(chosen.sum()), first]
        total = int(lengths[chosen].sum()) / 1e6
        times = [None, None] if kind == KINDS[MOMENT] else [total, int(lengths[chosen].max()) / 1e6]
        rows.append([*row, *times])
    return {"rows": rows[:MAX_ROWS], "count": len(rows)}


def modules_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return the cost of each module, forward and backward, in ms, MB and 10^9 operations.

    Each row has the name, the index of the parent, and the number of calls; then pairs of self and
    total cost. If there are many modules, the largest are kept, with all their parents.
    """
    found = measured.modules
    device = bool(len(measured.launches.work))
    weight = [row.forward_total + row.backward_total for row in found.rows]
    size = [(one.device if device else one.host) for one in weight]
    kept = set(sorted(range(len(size)), key=lambda place: -size[place])[:MAX_MODULES])
    for place in sorted(kept, reverse=True):  # parents come first
        while (place := found.rows[place].parent) != ROOT:
            kept.add(place)
    places = {place: number for number, place in enumerate(sorted(kept))}
    places[ROOT] = ROOT
    rows = []
    for place in sorted(kept):
        row = found.rows[place]
        both = (row.forward + row.backward, weight[place])
        rows.append(
            [
                row.name,
                places[row.parent],
                row.calls,
                *(one.host / 1e6 for one in (row.forward, row.forward_total)),
                *(one.host / 1e6 for one in (row.backward, row.backward_total)),
                *(one.device / 1e6 for one in (row.forward, row.forward_total)),
                *(one.device / 1e6 for one in (row.backward, row.backward_total)),
                *(one.allocated / 1e6 for one in both),
                *(one.known_flops and one.known_flops / 1e9 for one in both),
            ]
        )
    return {
        "rows": rows,
        "count": len(found.rows),
        "of_labels": found.of_labels,
        "device": device,
        "memory": len(measured.trace.memory["time"]) > 0,
        "flops": found.with_flops,
        "outside": found.outside.device / 1e6,
        "unknown": found.device_unknown / 1e6,
    }


def categories_section(measured: MeasuredTrace) -> dict[str, Any]:
    """Return device time by category, and kernels by duration, in ms."""
    trace, work = measured.trace, measured.launches.work
    lengths = trace.spans["length"][work[trace.category(ALL_KERNELS)[work]]]
    place = np.searchsorted(_DURATIONS_NS, lengths, side="right")
    counts = np.bincount(place, minlength=len(_DURATION_NAMES)).tolist()
    totals = np.bincount(place, lengths, len(_DURATION_NAMES)).tolist()
    return {
        "rows": [
            [one.category, one.device, one.count, one.total / 1e6, one.ratio]
            for one in measured.categories
        ],
        "durations": [
            [name, count, total / 1e6]
            for name, count, total in zip(_DURATION_NAMES, counts, totals, strict=True)
            if count
        ],
    }


def sequences_section(measured: MeasuredTrace) -> dict[str, Any]:
    """Return rows of operators, line of code, count, kernels in each, and times in ms."""
    chosen = measured.sequences[:MAX_SEQUENCES]
    rows = [
        [
            joined_names(source.operators, 8),
            source.line,
            one.count,
            len(one.names),
            int(one.busy_ns.sum()) / 1e6,
            int(one.gaps_ns.sum()) / 1e6,
            one.saved_ns / 1e6,
        ]
        for one, source in zip(chosen, sources(measured, chosen), strict=True)
    ]
    return {"rows": rows, "count": len(measured.sequences)}


def roofline_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return rows of operators with their rates, and the roofs of the device that worked."""
    rows, peak = measured.operator_work, measured.peak
    known = [work for work in rows if work.tflops or work.gb_s]
    where = [work for work in known if work.where == DEVICE] or known
    busy = int(measured.trace.spans["length"][measured.launches.work].sum())
    return {
        "device": measured.device_name,
        "on_host": not busy,
        "peak": peak and {"gb_s": peak.gb_s, "roofs": _roofs(where, peak), "source": peak.source},
        "covered": sum(work.device_ns for work in where) / busy if busy else None,
        "rows": [_row(measured, work) for work in where[:MAX_ROOFLINE_ROWS]],
        "count": len(where),
    }


def _roofs(rows: Iterable[OperatorWork], peak: Peak) -> list[tuple[str, float]]:
    """Return the peaks that apply to some operator, the highest first; equal ones share a line."""
    kinds = {peak_kind(work, peak) for work in rows}
    names: dict[float, list[str]] = {}
    for kind, tflops in peak.tflops.items():
        if kind in kinds:
            names.setdefault(tflops, []).append(kind)
    return [(", ".join(names[tflops]), tflops) for tflops in sorted(names, reverse=True)]


def _row(measured: MeasuredTrace, work: OperatorWork) -> list[Any]:
    place = roofline_point(work, measured.peak)
    shapes = shapes_text(work.dims).rstrip(";")
    if len(shapes) > LONGEST_SHAPES:
        shapes = f"{shapes[:LONGEST_SHAPES]}…"
    return [
        f"{work.name} {shapes}".strip(),
        work.dtype.removeprefix("c10::"),
        work.count,
        (work.time_ns or 0) / 1e6,
        work.tflops,
        work.gb_s,
        work.flops / work.moved if work.flops and work.moved else None,
        place.share and 100 * place.share,
        place.bound,
        None if work.on_tensor_cores is None else 100 * work.on_tensor_cores,
    ]


def steps_to_draw(lengths: Sequence[float], most: int) -> list[tuple[int, int]]:
    """Return the slowest steps and their neighbours: index, and number of steps skipped before it.

    They are in the order of the steps; all steps are returned if they fit.

    Args:
        lengths: The time of each step.
        most: The most steps to return.
    """
    chosen: set[int] = set()
    for slow in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        around = chosen | ({slow - 1, slow, slow + 1} & set(range(len(lengths))))
        if len(around) > most:
            break
        chosen = around
    places = sorted(chosen)
    return [(here, here - before - 1) for before, here in zip([-1, *places], places, strict=False)]


def waiting(measured: MeasuredTrace) -> Data | None:
    """Return why the device was idle in the mean step, in ms; None if no device worked."""
    steps, found = measured.breakdown, measured.idle
    if found is None:
        return None
    each = 1e6 * max(1, steps.count)
    trace, started = measured.trace, measured.launches
    numbers = [stream for device, stream in streams(trace, started) if device == steps.device]
    counts, times = Counter[str](), Counter[str]()
    rows = []
    for place, stream in enumerate(numbers):
        own = queue(trace, started, steps.device, stream)
        for name, count, time in queue_blockers(trace, started, own):
            counts[name] += count
            times[name] += time
        if place < MAX_STREAMS:
            rows.append(_stream(measured, stream, own))
    whole = queue(trace, started, steps.device)
    return {
        "device": steps.device,
        "step": steps.a_step,
        "kinds": {name: time / each for name, time in found.by_kind().items()},
        "causes": [[name, time / each] for name, time in found.by_cause().items() if time],
        "streams": rows,
        "count": len(numbers),
        "percentiles": list(PERCENTILES),
        "delay": _delays(whole),
        "behind": [
            [name, counts[name], ns / 1e6] for name, ns in times.most_common(MAX_BEHIND) if ns
        ],
        "depth": _depth(whole),
        "delays": _delays_over_time(whole),
    }


def _stream(measured: MeasuredTrace, stream: int, own: Queue) -> Data:
    """Return the gaps of a stream over the whole trace, in ms, and the depth of its queue."""
    trace, started, device = measured.trace, measured.launches, measured.breakdown.device
    found = gaps(trace, started, measured.marked, device, stream)
    why = idle(trace, started, measured.host_waits, found)
    kinds = why.by_kind() | queue_reasons(trace, started, found, why, device, stream)
    told = trace.category(SYNCHRONISATIONS).any()
    left_out = {QUEUED} if told else {QUEUED, EVENT}
    return {
        "stream": stream,
        "count": len(own.work),
        "kinds": {name: time / 1e6 for name, time in kinds.items() if name not in left_out},
        "delay": _delays(own),
        "depth": own.depth_percentiles(),
    }


def _delays(found: Queue) -> list[float] | None:
    """Return percentiles of the time from launch to start, in us; None if unknown."""
    if not len(found.work):
        return None
    return [float(delay) / 1e3 for delay in np.percentile(found.delay, PERCENTILES)]


def _depth(found: Queue) -> Data:
    """Return the highest depth of the queue in each slice of time; times in ms."""
    kept = _highest(found.times, found.depth)
    times = found.times[kept] - found.times[:1]
    return {"ms": (times / 1e6).tolist(), "depth": found.depth[kept].tolist()}


def _delays_over_time(found: Queue) -> Data:
    """Return the longest delay of a launch in each slice of time; times in ms, delays in us."""
    order = np.argsort(found.launched, kind="stable")
    times, delays = found.launched[order], found.delay[order]
    kept = _highest(times, delays)
    times = times[kept] - found.times[:1]  # same origin as the depth
    return {"ms": (times / 1e6).tolist(), "us": (delays[kept] / 1e3).tolist()}


def _highest(times: Numbers, values: Numbers) -> Numbers:
    """Return the indexes of the points to draw: if there are many, the highest of each slice."""
    if len(times) <= MAX_POINTS:
        return np.arange(len(times))
    slices = (times - times[0]) * MAX_POINTS // (int(times[-1] - times[0]) + 1)
    ranked = np.lexsort((values, slices))
    last = np.append(slices[ranked][1:] != slices[ranked][:-1], [True])
    return np.sort(ranked[last])


def iterations_section(measured: MeasuredTrace) -> dict[str, Any]:
    """Return the iterations of an inference server, by kind and one by one; times in ms."""
    found = list(measured.iteration_times.values())
    return {
        "kinds": [
            [
                kind,
                len(some),
                *(_median([getattr(one.label, name) for one in some]) for name in _SIZES),
                *(_median([getattr(one, name) for one in some], 1e6) for name in _TIMES),
                _median([one.tokens_per_second for one in some]),
            ]
            for kind, some in by_kind(found).items()
        ],
        "rows": [
            [
                one.label.kind,
                one.number,
                *(getattr(one.label, name) for name in _SIZES),
                *_ms(*(getattr(one, name) for name in _TIMES)),
                one.tokens_per_second,
            ]
            for one in sorted(found, key=lambda one: -one.time)[:MAX_ROWS]
        ],
        "count": len(found),
    }


def _median(values: Sequence[float | None], unit: float = 1) -> float | None:
    """Return the median of the values that are known, in a unit; None if none is."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) / unit if known else None


def path_section(measured: MeasuredTrace) -> dict[str, Any] | None:
    """Return the data of the page's section; times in ms."""
    path = measured.critical_path
    if path is None or not path.length:
        return None
    lengths = path.lengths.tolist()
    rows = [
        {
            "number": path.steps[place][0],
            "length": lengths[place] / 1e6,
            "parts": in_ms(path.parts(place)),
            "skipped": skipped,
        }
        for place, skipped in steps_to_draw(lengths, MAX_STEPS)
    ]
    return {
        "about": _about(path, measured.breakdown),
        "steps": rows,
        "count": len(path.steps),
        "length": path.length / 1e6,
        "what_ifs": [
            [one.what, one.step / 1e6, (path.length - one.step) / 1e6, one.on_path / 1e6]
            for one in path.what_ifs
        ],
        "names": _names(path, measured.trace.tables["name"]),
    }


def in_ms(times: Mapping[str, float]) -> dict[str, float]:
    """Return times in ms, of times in ns."""
    return {name: time / 1e6 for name, time in times.items()}


def _about(path: CriticalPath, steps: Breakdown) -> list[str]:
    """Return how to read the path, in sentences."""
    if path.on_host:
        waits = (
            " Waiting for a collective counts as its work." if steps.parts[COMMUNICATION] else ""
        )
        return [
            "No device worked: the path is the thread of the steps itself, and autograd's while "
            f"it waits for that one.{waits}"
        ]
    found = [
        "The work that a step had to wait for, until host and devices were done with it. It is "
        "found backwards along launches, streams, events and synchronisations, to the end of the "
        "step before. Work that other work hides is not on the path."
    ]
    if path.leaves_out:
        found.append(f"It is not known here: {_left_out(path)}. The path leads past it.")
    elif not path.waits_recorded:
        found.append(
            "The trace does not show what streams wait for. A requested wait is charged to the "
            "work that ended last before it; the rest is an unknown wait. To record what streams "
            "wait for, set profiler_level Level1 (in torch, enable_cuda_sync_events)."
        )
    return found


def _names(path: CriticalPath, names: list[str]) -> list[list[Any]]:
    """Return the parts of the path in the mean step by name, the longest first.

    A profiler's own work has the profiler's name.
    """
    times, steps = path.times, max(1, len(path.ends))
    keys = np.stack([times.name, times.part, times.phase], axis=1)
    rows, where = np.unique(keys, axis=0, return_inverse=True)
    time, count = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    np.add.at(time, where.ravel(), times.time)
    np.add.at(count, where.ravel(), times.count)
    found: dict[tuple[str, str], list[int]] = {}
    for (name, part, phase), *more in zip(
        rows.tolist(), count.tolist(), time.tolist(), strict=True
    ):
        shown = names[name] if name >= 0 else _NAMELESS.get(PARTS[part], "")
        where_is = f"{PARTS[part]}, {PHASES[phase]}" if phase >= 0 else PARTS[part]
        sums = found.setdefault((profiler_of(shown) or shown, where_is), [0, 0])
        sums[:] = [one + other for one, other in zip(sums, more, strict=True)]
    longest = sorted(found.items(), key=lambda row: -row[1][1])[:MAX_PATH_ROWS]
    return [[*what, pieces / steps, ns / steps / 1e6] for what, (pieces, ns) in longest]


def path_sentence(measured: MeasuredTrace) -> list[str]:
    """Return a sentence on the path if it shows more than the shares of the verdict.

    It names the path's length: a step lasts until host and devices are done, and the mean counts.
    """
    path, steps = measured.critical_path, measured.breakdown
    if path is None or path.on_host or steps.on_host or not path.length:
        return []
    parts = path.parts()
    if path.leaves_out:
        return [f"What {_whole(measured)} waits for is unknown: {_left_out(path)}."]
    if path.is_unknown:
        unknown = parts[PARTS[WAITING]] / path.length
        return [
            f"What {_whole(measured)} waits for is unknown: for {unknown:.0%} of its critical path "
            "the trace does not tell which thread or stream waits for which."
        ]
    on_path = {
        COMPUTING: parts[PARTS[KERNELS]],
        COMMUNICATION: parts[PARTS[COMMUNICATING]],
        COPYING: parts[PARTS[COPIES]],
    }
    differs = (abs(t / path.length - steps.share(steps.parts[n])) for n, t in on_path.items())
    if max(differs) < _SAYS_MORE:
        return []
    shares = sorted(((time / path.length, name) for name, time in parts.items()), reverse=True)
    named = [f"{share:.0%} {_WORDS.get(name, name)}" for share, name in shares if share >= _SHOWN]
    return [
        f"The critical path of {_whole(measured)} takes {ms(path.length)}: {_joined(named)}; "
        f"{_best(path, path.what_ifs)}."
    ]


def _left_out(path: CriticalPath) -> str:
    """Return which work a path leads past."""
    return (
        f"the trace does not tell what launches the work of some streams ({ms(path.unlinked)}), or "
        "what waits for it"
    )


def variation_sentence(measured: MeasuredTrace) -> list[str]:
    """Return a sentence if steps differ because the host waits for the device.

    The device may need as long for each: its backlog decides in which step the host waits.
    """
    steps, lengths = measured.breakdown, [length for *_, length in measured.marked]
    if steps.on_host or steps.behind or len(lengths) < 2 or max(lengths) < MIN_RATIO * min(lengths):
        return []
    calls = measured.host_waits.blocking(measured.host_waits.main)
    waits = [
        covered(clipped((calls.start, calls.end), begin, begin + length))
        for _, begin, length in measured.marked
    ]
    longest, shortest = int(np.argmax(lengths)), int(np.argmin(lengths))
    extra = lengths[longest] - lengths[shortest]
    if waits[longest] - waits[shortest] <= _MOSTLY * extra:
        return []
    spans = [one.stage for one in measured.steps if one.device == steps.device and one.stage]
    call = measured.trace.name(int(calls.call[np.argmax(calls.end - calls.start)]))
    needs = " to ".join(dict.fromkeys([ms(min(spans)), ms(max(spans))]))
    return [
        f"Steps of the host differ by how long it waits for the device, {ms(min(waits))} to "
        f"{ms(max(waits))}, most in {call}; from start to end the device needs {needs} for what a "
        "step launches."
    ]


def _whole(measured: MeasuredTrace) -> str:
    """Return what the path is of: the mean of all steps, outliers too, unless there is one."""
    steps = measured.breakdown
    if not steps.marked:
        return "the trace"
    return f"the {'mean ' if len(measured.marked) > 1 else ''}{steps.noun}"


def _best(path: CriticalPath, what_ifs: list[WhatIf]) -> str:
    worth = [one for one in what_ifs if one.step <= (1 - _WORTH) * path.length]
    if not worth:
        return "nothing on it, taken by itself, would save much if it cost nothing"
    return f"if {worth[0].what} cost nothing, it would take {ms(worth[0].step)}"


def _joined(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def bandwidth(measured: MeasuredTrace, ranks: Ranks | None) -> Data:
    """Return bandwidths in GB/s, sizes in MB and times in ms; None if unknown."""
    between = ranks.bandwidth if ranks else None
    return {
        "copies": [
            [
                " ".join(filter(None, (one.direction, _ends(one.source, one.target)))),
                one.count,
                one.time / 1e6,
                one.size / 1e6 if one.sized else None,
                one.bandwidth,
                one.large_bandwidth,
            ]
            for one in copies(measured.trace)[:MAX_TRANSFERS]
        ],
        "collectives": _of_all(between) if between and between.traffic else _of_one(measured),
        "split": bool(between and between.traffic),
        "links": _links(between),
    }


def _ends(source: str, target: str) -> str:
    return f"({source} to {target})" if source else ""


def _of_one(measured: MeasuredTrace) -> list[list[Any]]:
    """Return the collectives of one trace, whose time includes the wait for other ranks."""
    return [
        [
            _called(one.message.kind, one.group),
            one.message.size / 1e6 if one.message.size > 0 else None,
            one.count,
            one.total / 1e6,
            one.algorithm(one.shortest),
            one.bus(one.shortest),
        ]
        for one in traffic(measured.trace, measured.messages)[:MAX_TRANSFERS]
    ]


def _of_all(between: Bandwidth) -> list[list[Any]]:
    """Return the collectives that ranks share, with waiting and moving as separate times."""
    return [
        [
            _called(one.kind, one.group),
            one.size / 1e6 if one.size > 0 else None,
            one.count,
            one.waiting / 1e6,
            one.moving / 1e6,
            one.algorithm,
            one.bus,
        ]
        for one in between.traffic[:MAX_TRANSFERS]
    ]


def _called(kind: str, group: str) -> str:
    group = group.replace('"', "").strip()
    if group and not group.startswith("from rank"):
        group = f"group {group}"
    return ", ".join(filter(None, (kind or "of unknown kind", group)))


def _links(between: Bandwidth | None) -> Data | None:
    """Return the links: as a matrix by sender and receiver, or the slowest as a list."""
    if between is None or not between.links:
        return None
    links = sorted(between.links, key=lambda link: link.bandwidth)
    ends = sorted({end for link in links for end in (link.source, link.target)})
    cells: dict[tuple[int, int], float] = {}
    for link in links:  # the slower of two kinds between the same ranks is shown
        rate = link.large_bandwidth or link.bandwidth
        cells.setdefault((link.source, link.target), rate)
        if not link.one_way:
            cells.setdefault((link.target, link.source), rate)
    return {
        "count": len(links),
        "ranks": ends if len(ends) <= WIDEST else [],
        "matrix": [[cells.get((row, column)) for column in ends] for row in ends]
        if len(ends) <= WIDEST
        else [],
        "rows": [
            [
                str(link),
                link.count,
                link.size / 1e6,
                link.waiting / 1e6,
                link.moving / 1e6,
                link.bandwidth,
                link.large_bandwidth,
            ]
            for link in links[:MAX_LINKS]
        ],
    }
