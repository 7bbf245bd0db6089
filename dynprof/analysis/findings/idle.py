"""Findings about why the device is idle; each has its own part of that time, none overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.findings.call_sites import (
    callers,
    callers_of,
    calls_named,
    can_move,
    main_place,
    phases,
    places,
    times_named,
)
from dynprof.analysis.findings.finding import (
    OF_THE_STEP,
    OUT_OF_THE_LOOP,
    Finding,
    how_many,
    longest,
)
from dynprof.analysis.measures.critical_path import Removal
from dynprof.analysis.measures.idle import (
    ALLOCATING,
    EDGE,
    ELSEWHERE,
    FIRST_USE,
    LAUNCHING,
    NONE,
    PAGEABLE,
    STARTING,
    SYNCHRONISING,
    UNKNOWN_CAUSE,
    WAITING,
    cut_by_covers,
    first_uses,
    warm_ups,
)
from dynprof.analysis.measures.timeline.breakdown import COMMUNICATION, COMPUTING, Breakdown, ms
from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.measures.timeline.steps import collectives
from dynprof.analysis.reading.events import COPIES, FRAMES, LABELS, LAUNCHES, OPERATORS, RANGES
from dynprof.analysis.reading.spans import cover, distinct, inside, united
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dynprof.analysis.findings.call_sites import CallSite
    from dynprof.analysis.findings.finding import Moment
    from dynprof.analysis.measures.idle import Idle
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

PAGEABLE_MEMORY = "Pageable"
"""Part of the names of copies from or to memory that is not pinned."""
_MAX_CALLS = 3
"""Names of calls that a finding lists, at most."""
_LONG = 0.1
"""Share of a time from which launch calls are worth naming."""
_SHORT_NS = 10_000
"""A device needs less time than this, in ns, from one queued kernel to the next."""


def of_cause(measured: MeasuredTrace, *causes: str) -> Idle | None:
    """Return the device's idle time that has one of these causes; None if there is none."""
    found = measured.idle
    pieces = found.select(found.of_cause(*causes)) if found else None
    return pieces if pieces and len(pieces.start) else None


def longest_idle(pieces: Idle | None) -> Moment | None:
    """Return the longest piece of idle time; None if there is none."""
    if pieces is None or not len(pieces.start):
        return None
    found = (pieces.end - pieces.start).argmax()
    return int(pieces.start[found]), int(pieces.end[found] - pieces.start[found])


def mean(steps: Breakdown, pieces: Idle) -> float:
    """Return this idle time in the mean step, in ns."""
    return int(pieces.time.sum()) / max(1, steps.count)


def of_host(pieces: Idle | None) -> Removal | None:
    """Return the host's work during idle time of a device; None if there is none."""
    if pieces is None:
        return None
    threads = distinct(pieces.thread).tolist()
    return Removal(
        host={
            thread: cover(pieces.start[here], pieces.end[here])
            for thread, here in ((thread, pieces.thread == thread) for thread in threads)
        }
    )


def late(measured: MeasuredTrace, pieces: Idle) -> Removal:
    """Return the delays of the device activities that could have begun in gaps.

    That is the next of each stream: if one stream alone had no delay, another would be as late.
    """
    spans, begins = measured.trace.spans, measured.gaps.start[distinct(pieces.gap)]
    work = measured.launches.work
    work = work[spans["device"][work] == measured.breakdown.device]
    chosen = np.zeros(len(spans["start"]), bool)
    for stream in distinct(spans["stream"][work]).tolist():
        own = work[spans["stream"][work] == stream]
        place = np.searchsorted(spans["start"][own], begins)
        chosen[own[place[place < len(own)]]] = True
    return Removal(late=chosen)


def by_thread(trace: Trace, chosen: NDArray[np.bool_]) -> dict[int, Cover]:
    """Return when some spans ran on each thread."""
    thread = trace.spans["thread"]
    return {one: trace.when(chosen & (thread == one)) for one in distinct(thread[chosen]).tolist()}


def _waiting_calls(measured: MeasuredTrace, pieces: Idle) -> NDArray[np.bool_]:
    """Return the calls in which the host waits for the device, and the calls inside them."""
    trace, spans = measured.trace, measured.trace.spans
    outer = np.zeros(len(spans["start"]), bool)
    outer[pieces.call[pieces.call != UNKNOWN]] = True
    found = np.zeros(len(outer), bool)
    for thread, where in by_thread(trace, outer).items():
        found |= (spans["thread"] == thread) & inside(spans["start"], where)
    return found & trace.category(LAUNCHES)


def synchronisations(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find calls in which the host waits for the device, which then has nothing to do."""
    if not (pieces := of_cause(measured, SYNCHRONISING)):
        return None
    time, sites = mean(steps, pieces), callers(measured, steps, pieces)
    count = sum(one.count for one in sites)
    leave = counted(count, "synchronisation leaves", "synchronisations leave")
    return Finding(
        "The host waits for the device",
        steps.share(time),
        f"{leave} the device idle for {ms(time)} of {steps.a_step}: {calls_named(sites)}.",
        f"Keep values on the device and read them every few steps; {_usual(sites)}copy with "
        "non_blocking=True.",
        removal=Removal(waits=_waiting_calls(measured, pieces)),
        place=main_place(sites),
        at=longest_idle(pieces),
    )


def _usual(sites: list[CallSite]) -> str:
    """Return the calls that usually wait for the device, if no line of the user's is known."""
    if any(one.place for one in sites):
        return ""
    return "look for .item(), .cpu(), print(loss) and conditions on tensors in the loop, "


def pageable_copies(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find copies from or to memory that is not pinned, which run alone or block the host."""
    if steps.on_host:
        return None
    trace = measured.trace
    chosen = trace.category(COPIES) & trace.named(lambda name: PAGEABLE_MEMORY in name)
    chosen &= (trace.spans["device"] == steps.device) & ~measured.from_before
    others = united(steps.covers[COMPUTING], steps.covers[COMMUNICATION])
    alone = steps.time_in(united(others, trace.when(chosen))) - steps.time_in(others)
    pieces = of_cause(measured, PAGEABLE)
    waiting = mean(steps, pieces) if pieces else 0.0
    calls = _calls_of(measured, chosen)
    blocked = steps.time_in(trace.when(calls))
    if not alone + waiting + blocked:
        return None
    copies = counted(how_many(measured, steps, chosen), "copy", "copies")
    idle, sites = "", callers(measured, steps, pieces) if pieces else []
    if pieces:
        idle = (
            f" The device is idle for {ms(waiting)} more, because the call blocks the host: "
            f"{calls_named(sites)}."
        )
    at = longest_idle(pieces) or longest(measured, chosen)
    if blocked > alone + waiting:
        at, place = longest(measured, calls), np.flatnonzero(calls & measured.in_steps)
        sites = callers_of(measured, steps, place, trace.spans["length"][place])
        idle += f" Their calls block the host for {ms(blocked)}: {calls_named(sites)}."
    return Finding(
        "Copies from memory that is not pinned",
        steps.share(max(alone + waiting, blocked)),
        f"{copies} in {steps.a_step} between the device and pageable memory: {ms(alone)} in which "
        f"nothing computes.{idle}",
        _to_pin(measured, chosen & measured.in_steps),
        removal=Removal(work=chosen & measured.in_steps, waits=chosen & measured.in_steps),
        place=main_place(sites),
        at=at,
    )


def _to_pin(measured: MeasuredTrace, copies: NDArray[np.bool_]) -> str:
    """Return the advice on copies, by the direction that blocks the host for longer."""
    trace, lengths = measured.trace, measured.trace.spans["length"]
    to_host = trace.named(lambda name: f"-> {PAGEABLE_MEMORY}" in name)
    up, down = (lengths[_calls_of(measured, copies & which)].sum() for which in (~to_host, to_host))
    if down > up:
        return (
            "Keep values on the device and read them every few steps; copy into pinned memory with "
            "non_blocking=True."
        )
    return "Try pin_memory=True in the data loader, and .to(device, non_blocking=True)."


def _calls_of(measured: MeasuredTrace, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the calls that launched the chosen work of the device."""
    started, found = measured.launches, np.zeros(len(chosen), bool)
    calls = started.call[chosen[started.work]]
    found[calls[calls != UNKNOWN]] = True
    return found


def first_use(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find calls that create a context or load a library or kernels, which happens once."""
    if not (pieces := of_cause(measured, FIRST_USE)):
        return None
    trace, chosen = measured.trace, first_uses(measured.trace) & measured.in_steps
    around, time = warm_ups(trace) & measured.in_steps, mean(steps, pieces)
    names, code = trace.tables["name"], trace.spans["name"][chosen]
    lasts = np.bincount(code, weights=trace.spans["length"][chosen], minlength=len(names))
    counts = np.bincount(code, minlength=len(names))
    calls = "; ".join(
        f"{counts[place]} x {names[place]}, {ms(lasts[place])}"
        for place in np.argsort(-lasts, kind="stable")[:_MAX_CALLS].tolist()
        if counts[place]
    )
    sites = places(measured, steps, pieces)
    rest = ", and the rest of their operators," if around.any() else ""
    return Finding(
        "First use of the device or a library",
        steps.share(time),
        f"Calls that create the device's context or load a library or kernels{rest} leave the "
        f"device idle for {ms(time)} of {steps.a_step}{_lines(measured, sites)}. The calls: "
        f"{calls}.",
        "It happens once: record later steps, or run a step before the window, as warm-up.",
        removal=Removal(host=by_thread(trace, chosen | around)),
        place=main_place(sites),
        at=longest(measured, first_uses(trace)),
    )


def allocator(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find device memory that is allocated and freed in the loop."""
    if not (pieces := of_cause(measured, ALLOCATING)):
        return None
    time, sites = mean(steps, pieces), places(measured, steps, pieces)
    return Finding(
        "Memory is taken from the driver in the loop",
        steps.share(time),
        f"Calls to allocate or free device or pinned memory leave the device idle for {ms(time)} "
        f"of {steps.a_step}{_lines(measured, sites)}.",
        "The caching allocator should need none after some steps: look for shapes that change and "
        "for empty_cache(); try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        removal=of_host(pieces),
        place=main_place(sites),
        at=longest_idle(pieces),
    )


def _lines(measured: MeasuredTrace, sites: list[CallSite]) -> str:
    stacks = measured.trace.category(FRAMES).any()
    outside = "outside of your own code" if stacks else "outside of operators"
    said = times_named(sites, outside)
    return f": {said}" if said else ""


def launching(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find launches in direct succession that come after the device ran out of work."""
    if not (pieces := of_cause(measured, LAUNCHING)):
        return None
    found, time, sites = measured.gaps, mean(steps, pieces), places(measured, steps, pieces)
    late = distinct(pieces.gap)
    before = found.before[late]
    ran = measured.trace.spans["length"][measured.launches.work[before[before != EDGE]]]
    pace = np.median(measured.host_waits.launch_periods(found.launch_call[late])) / 1e3
    work = f", the work before the gap takes {np.median(ran) / 1e3:.1f} us" if len(ran) else ""
    launches = counted(
        len(late) / max(1, steps.count),
        "launch comes after the device ran out of work and leaves it",
        "launches come after the device ran out of work and leave it",
    )
    return Finding(
        "The host cannot launch fast enough",
        steps.share(time),
        f"{launches} idle for {ms(time)} of "
        f"{steps.a_step}{_lines(measured, sites)}. From launch to launch the host takes "
        f"{pace:.1f} us{work} (medians).",
        "Try torch.compile (mode='reduce-overhead' records CUDA graphs), fused=True in the "
        "optimizer, or a larger batch.",
        removal=of_host(pieces),
        place=main_place(sites),
        at=longest_idle(pieces),
    )


def elsewhere(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find time in which the host does something other than launching, without a known cause."""
    if not (pieces := of_cause(measured, ELSEWHERE)):
        return None
    time, sites = mean(steps, pieces), places(measured, steps, pieces)
    gap = counted(len(distinct(pieces.gap)) / max(1, steps.count), "gap")
    phase = times_named(phases(measured, steps, pieces), "outside of phases")
    within = f" That is {phase}." if phase else ""
    does, slow = "does something other than launching", _in_calls(measured, steps, pieces)
    if slow >= _LONG * time:
        does += f", or is long in a launch call ({ms(slow)})"
        within += " A first launch loads the kernel: record later steps to see whether it stays."
    within += _host_collectives(measured, steps, pieces)
    return Finding(
        "The device waits for the host",
        steps.share(time),
        f"It is idle for {ms(time)} of {steps.a_step} in {gap}, while the host {does}"
        f"{_lines(measured, sites)}.{within}",
        OUT_OF_THE_LOOP
        if can_move(sites)
        else OF_THE_STEP
        if any(one.place for one in sites)
        else "The usual causes are loops over tensors, logging and work on the host between "
        "operators.",
        removal=of_host(pieces),
        place=main_place(sites),
        at=longest_idle(pieces),
    )


def _in_calls(measured: MeasuredTrace, steps: Breakdown, pieces: Idle) -> float:
    """Return how long the host was in the calls that launched what ran next."""
    spans, asked = measured.trace.spans, measured.gaps.launch_call[distinct(pieces.gap)]
    calls = cover(spans["start"][asked], (spans["start"] + spans["length"])[asked])
    return _time_in(steps, pieces, calls)


def _host_collectives(measured: MeasuredTrace, steps: Breakdown, pieces: Idle) -> str:
    """Say how long collectives ran on the host, if that is long: the host may wait for them."""
    trace, sent = measured.trace, np.zeros(len(measured.trace.spans["start"]), bool)
    sent[collectives(trace)] = True
    time = _time_in(steps, pieces, trace.when(sent & trace.category(LABELS)))
    if time < _LONG * mean(steps, pieces):
        return ""
    return f" During {ms(time)} of it collectives run on the host, which it may wait for."


def _time_in(steps: Breakdown, pieces: Idle, where: Cover) -> float:
    """Return how long a cover lasts in the idle time of the mean step, in ns."""
    start, end, of, first = cut_by_covers(pieces.start, pieces.end, [where])
    return float(((end - start) * pieces.weight[of])[first != NONE].sum()) / max(1, steps.count)


def queue(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find work that had been launched and did not start, although the device was idle."""
    if not (pieces := of_cause(measured, WAITING, STARTING)):
        return None
    time = mean(steps, pieces)
    sizes = np.sort(np.bincount(pieces.gap, weights=pieces.time))
    usual = float(sizes[np.searchsorted(np.cumsum(sizes), sizes.sum() / 2)])
    count = counted(len(distinct(pieces.gap)) / max(1, steps.count), "time")
    queued = of_cause(measured, WAITING)
    ahead = mean(steps, queued) if queued else 0.0
    return Finding(
        "Work in the queue does not start",
        steps.share(time),
        f"The device is idle for {ms(time)} of {steps.a_step} although the next work was launched. "
        f"This happens {count}, half of the time in gaps of {usual / 1e3:,.1f} us or more. "
        f"{_when_launched(ahead, time)}",
        "This is a device's own time from one kernel to the next. Fewer and longer kernels have "
        "less of it: try torch.compile or CUDA graphs."
        if usual < _SHORT_NS
        else "Find with dynprof view what it waits for: an event of another stream, a host "
        "function in the stream, or another process on the device.",
        removal=late(measured, pieces),
        by_line=False,
        at=longest_idle(pieces),
    )


def _when_launched(ahead: float, time: float) -> str:
    """Return which part of a time in the queue begins with a late launch."""
    if not ahead:
        return "All of it passes between a late launch and its start."
    if ms(ahead) == ms(time):
        return "All of it was launched before the device was free."
    return (
        f"For {ms(ahead)} of that it was launched before the device was free; the rest passes "
        "between a late launch and its start."
    )


def unknown(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Name idle time that the trace cannot explain."""
    if not (pieces := of_cause(measured, UNKNOWN_CAUSE)):
        return None
    time, count = mean(steps, pieces), len(distinct(pieces.gap)) / max(1, steps.count)
    return Finding(
        "The device is idle, and the trace cannot tell why",
        steps.share(time),
        f"It is idle for {ms(time)} of {steps.a_step} before "
        f"{counted(count, 'kernel or copy', 'kernels and copies')} whose launch is not in the "
        f"trace{_host_activity(steps, pieces)}.",
        _to_record(measured.trace),
        removal=late(measured, pieces),
        by_line=False,
        at=longest_idle(pieces),
    )


def _to_record(trace: Trace) -> str:
    """Return how to record the launches that a trace lacks."""
    if trace.category(LAUNCHES).any():
        return "Calls were lost, or nothing links them to their work: a short window loses fewer."
    if trace.category(OPERATORS, LABELS, RANGES, FRAMES).any():
        return "The trace has the host, but no calls that launch work: torch.profiler records them."
    return "Record the activities of the host as well: add CPU to the device's."


def _host_activity(steps: Breakdown, pieces: Idle) -> str:
    """Return what the host did for most of that time, without calling it the cause."""
    start, end, of, first = cut_by_covers(pieces.start, pieces.end, list(steps.causes.values()))
    times = dict.fromkeys(steps.causes, 0.0)
    for place, name in enumerate(times):
        here = first == place
        times[name] = float(((end - start) * pieces.weight[of])[here].sum()) / max(1, steps.count)
    name, most = max(times.items(), key=lambda one: one[1])
    return f"; of it {ms(most)} while the host is at: {name}" if most else ""


IDLE_RULES: tuple[Callable[[MeasuredTrace, Breakdown], Finding | None], ...] = (
    pageable_copies, synchronisations, first_use, allocator, launching, elsewhere, queue, unknown,
)  # fmt: skip
"""Rules about idle time, causes before symptoms."""
