"""What a finding names as the cause: an operator, and the line in the user's own code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.critical_path import main_thread
from dynprof.analysis.measures.idle import cut, cut_by_covers
from dynprof.analysis.measures.timeline.breakdown import RECORDING, ms
from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.measures.timeline.overhead import is_dynprof_frame
from dynprof.analysis.measures.timeline.phase_times import PRECEDENCE, where_phase
from dynprof.analysis.measures.user_code import (
    code_at,
    function_of,
    is_user_frame,
    open_at_start,
    place_of,
    user_frames,
)
from dynprof.analysis.reading.events import CALLS, FRAMES, LAUNCHES, OPERATORS
from dynprof.analysis.reading.spans import ROOT, clipped, covered_until, distinct
from dynprof.runtime.plural import number

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dynprof.analysis.measures.idle import Idle
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]
    Chosen = NDArray[np.bool_]

_MAX_NAMED = 2
"""Call sites that a finding names, at most."""
_MIN_SHARE = 0.1
"""Share of a finding's time below which a call site is not named."""
_IN_PYTHON = {
    "aten::item": ".item()",
    "aten::is_nonzero": "a condition on a tensor",
    "aten::to": ".to()",
    "aten::copy_": ".copy_()",
    "aten::nonzero": ".nonzero()",
}
"""Python code that is clearer than the name of the operator that it calls."""


@dataclass(frozen=True)
class CallSite:
    """Something that costs time in the mean step.

    Attributes:
        what: An operator, a call or a phase; empty if there is none.
        place: Where in the user's code; empty if unknown.
        count: The number of pieces of time.
        time: The time that it costs, in ns.
        is_step: Whether most operators and launches of the steps run in it, as in the frame of the
            training loop or of the whole forward pass.
    """

    what: str
    place: str
    count: float
    time: float
    is_step: bool = False

    @property
    def called(self) -> str:
        """What it is and where, for a count of calls."""
        return " at ".join(filter(None, (self.what, self.place)))

    def at(self, outside: str) -> str:
        """Return where its time passes; ``outside`` if it has neither a place nor a name."""
        if self.place:
            return f"at {self.place}"
        return f"in {self.what}" if self.what else outside


def callers(measured: MeasuredTrace, steps: Breakdown, pieces: Idle) -> list[CallSite]:
    """Return what made the calls that cause idle time, the worst first."""
    known = pieces.call != UNKNOWN
    call, of = np.unique(pieces.call[known], return_inverse=True)
    time = np.bincount(of, weights=pieces.time[known], minlength=len(call))
    return callers_of(measured, steps, call, time)


def callers_of(
    measured: MeasuredTrace, steps: Breakdown, call: Numbers, time: Numbers
) -> list[CallSite]:
    """Return what made some calls, by the time of each, the worst first."""
    spans = measured.trace.spans
    found = code_at(measured.trace, measured.calls, spans["thread"][call], spans["start"][call])
    caller = np.where(found.operator == UNKNOWN, call, found.operator)
    return _grouped(measured, steps, caller, found.frame, time)


def places(measured: MeasuredTrace, steps: Breakdown, pieces: Idle) -> list[CallSite]:
    """Return where idle time passed, the worst first.

    The places are lines of the user's code; without stacks, operators and the time between them.
    """
    trace, spans = measured.trace, measured.trace.spans
    frames = user_frames(trace)
    stacks = bool(frames.any())
    edges = frames if stacks else trace.category(OPERATORS)
    begin = spans["start"][edges]
    pieces = pieces.cut_at(np.concatenate([begin, begin + spans["length"][edges]]))
    found = code_at(trace, measured.calls, pieces.thread, pieces.start)
    unnamed = np.full(len(pieces.start), UNKNOWN, np.int64)
    return _grouped(
        measured, steps, unnamed if stacks else found.operator, found.frame, pieces.time
    )


def starters(
    measured: MeasuredTrace, steps: Breakdown, chosen: Chosen, *, at_once: bool = False
) -> list[CallSite]:
    """Return what launched the chosen work of the device, the longest first.

    Args:
        measured: The trace.
        steps: Its steps.
        chosen: The work.
        at_once: Count simultaneous work once, for what began first.
    """
    trace, started = measured.trace, measured.launches
    included = chosen[started.work] & (trace.spans["device"][started.work] == steps.device)
    included &= measured.in_steps[started.work]
    work, call = started.work[included], started.call[included]
    time = _added(trace, work) if at_once else trace.spans["length"][work]
    call, time = call[call != UNKNOWN], time[call != UNKNOWN]
    found = code_at(trace, measured.calls, trace.spans["thread"][call], trace.spans["start"][call])
    return _grouped(measured, steps, found.operator, found.frame, time)


def openers(measured: MeasuredTrace, steps: Breakdown, chosen: Chosen) -> list[CallSite]:
    """Return where in the user's code the chosen spans of the host were opened, the longest first.

    The profiler's own time in a span does not count. Time that several spans cover counts for the
    first one only.
    """
    spans, own = measured.trace.spans, steps.causes[RECORDING]
    place = np.flatnonzero(chosen & measured.in_steps)  # by start; of equal ones the longer first
    end = spans["start"][place] + spans["length"][place]
    start = end - _added(measured.trace, place)
    recording = covered_until(own, end) - covered_until(own, start)
    return _opened(measured, steps, place, end - start - recording)


def _added(trace: Trace, place: Numbers) -> Numbers:
    """Return the time of each span in which none of those before it runs."""
    start = trace.spans["start"][place]
    end = start + trace.spans["length"][place]
    reached = np.maximum.accumulate(end)[:-1]
    added: Numbers = end - np.minimum(np.maximum(start, np.append(start[:1], reached)), end)
    return added


def self_time_openers(
    measured: MeasuredTrace, steps: Breakdown, name: str, chosen: Chosen
) -> list[CallSite]:
    """Return the same for operators and Python calls of one name, by their self time only.

    Empty for a function of the user's, whose name is already the place.
    """
    if is_user_frame(name):
        return []
    found = measured.operators
    included = (chosen & measured.in_steps)[found.span]
    return _opened(measured, steps, found.span[included], found.self_ns[included])


def _opened(
    measured: MeasuredTrace, steps: Breakdown, place: Numbers, time: Numbers
) -> list[CallSite]:
    spans = measured.trace.spans
    found = code_at(measured.trace, measured.calls, spans["thread"][place], spans["start"][place])
    return _grouped(measured, steps, np.full(len(place), UNKNOWN), found.frame, time)


def between(measured: MeasuredTrace, steps: Breakdown, busy: Cover) -> list[CallSite]:
    """Return where the thread of the steps was outside a cover, the longest first.

    The places are the user's functions and what they called there.
    """
    trace, spans = measured.trace, measured.trace.spans
    edges = [[begin, begin + length] for _, begin, length in steps.steps]
    clips = [clipped(busy, *edge) for edge in edges]
    start = np.array([t for (b, _), one in zip(edges, clips, strict=True) for t in (b, *one[1])])
    end = np.array([t for (_, e), one in zip(edges, clips, strict=True) for t in (*one[0], e)])
    frames = _users_and_called(measured)
    of_frames = np.concatenate([spans["start"][frames], (spans["start"] + spans["length"])[frames]])
    start, end, _ = cut(start[end > start], end[end > start], of_frames)
    thread = np.full(len(start), main_thread(trace))
    found = code_at(trace, measured.calls, thread, start)
    called = np.where(found.frame == UNKNOWN, UNKNOWN, found.called)
    return _grouped(measured, steps, called, found.frame, end - start, function_of)


def _users_and_called(measured: MeasuredTrace) -> Chosen:
    """Return the frames of the user's code and their direct calls.

    A function of dynprof's in between, which wraps one of torch's, is skipped.
    """
    trace, calls, users = measured.trace, measured.calls, user_frames(measured.trace)
    passed = users | (trace.category(FRAMES, CALLS) & trace.named(is_dynprof_frame))
    inside = calls.parent != ROOT
    inside[inside] = passed[calls.span[calls.parent[inside]]]
    chosen: Chosen = users.copy()
    chosen[calls.span[inside]] = True
    return chosen


def _grouped(
    measured: MeasuredTrace, steps: Breakdown, caller: Numbers, frame: Numbers, time: Numbers,
    place: Callable[..., str] = place_of,
) -> list[CallSite]:  # fmt: skip
    """Return sums by the names of spans and frames; -1 means none."""
    names = measured.trace.tables["name"]
    name = np.append(measured.trace.spans["name"], UNKNOWN)
    early = np.append(open_at_start(measured.trace, measured.marked), False)
    keys, of = np.unique(
        np.stack([name[caller], name[frame], early[frame]], axis=1), axis=0, return_inverse=True
    )
    called = [
        (_in_python(names[code]) if code != UNKNOWN else "",
         place(names[line], open_at_start=bool(before)) if line != UNKNOWN else "")
        for code, line, before in keys.tolist()
    ]  # fmt: skip
    of, each, found = of.ravel(), max(1, steps.count), dict[tuple[str, str], CallSite]()
    times = np.bincount(of, weights=time, minlength=len(keys)) / each
    counts = np.bincount(of, minlength=len(keys)) / each
    most = _with_most_work(measured, np.where(caller == UNKNOWN, frame, caller), of)
    for one, count, lasts, is_step in zip(
        called, counts.tolist(), times.tolist(), most.tolist(), strict=True
    ):
        other = found.get(one, CallSite(*one, 0, 0))  # names differ by address only
        found[one] = CallSite(
            *one, other.count + count, other.time + lasts, is_step or other.is_step
        )
    return sorted(found.values(), key=lambda one: -one.time)


def _with_most_work(measured: MeasuredTrace, place: Numbers, of: Numbers) -> Chosen:
    """Return for each group of spans whether most operators and launches begin in them.

    Args:
        measured: The trace.
        place: The spans; -1 for none.
        of: The group of each.
    """
    trace, spans = measured.trace, measured.trace.spans
    work = trace.category(OPERATORS, LAUNCHES) & measured.in_steps
    pairs = np.unique(np.stack([of, place]), axis=1)
    group, span = pairs[:, pairs[1] != UNKNOWN]
    inside = np.zeros(len(span), np.int64)
    for thread in distinct(spans["thread"][span]).tolist():
        here = spans["thread"][span] == thread
        start = spans["start"][work & (spans["thread"] == thread)]
        begin = spans["start"][span[here]]
        ends = np.searchsorted(start, begin + spans["length"][span[here]])
        inside[here] = ends - np.searchsorted(start, begin)
    counts = np.bincount(group, weights=inside, minlength=int(of.max(initial=-1)) + 1)
    found: Chosen = counts > max(1, work.sum() / 2)
    return found


def _in_python(name: str) -> str:
    return _IN_PYTHON.get(name) or function_of(name)


def phases(measured: MeasuredTrace, steps: Breakdown, pieces: Idle) -> list[CallSite]:
    """Return the phases of the step in which idle time passed, the worst first."""
    covers = {name: where_phase(measured.trace, name) for name in PRECEDENCE}
    start, end, of, first = cut_by_covers(pieces.start, pieces.end, list(covers.values()))
    counts = np.bincount(first + 1, minlength=len(covers) + 1)
    times = np.bincount(
        first + 1, weights=(end - start) * pieces.weight[of], minlength=len(covers) + 1
    )
    each = max(1, steps.count)
    columns = zip(["", *covers], counts / each, times / each, strict=True)
    found = [CallSite(name, "", float(one), float(time)) for name, one, time in columns if time]
    return sorted(found, key=lambda one: -one.time)


def calls_named(found: list[CallSite]) -> str:
    """Return the worst in words: ``56 x .item() at train.py:22 (main), 41 ms``; may be empty."""
    return "; ".join(f"{number(one.count)} x {one.called}, {ms(one.time)}" for one in _worst(found))


def times_named(found: list[CallSite], outside: str) -> str:
    """Return the worst in words: ``41 ms at train.py:22 (main)``; may be empty.

    Args:
        found: The call sites to name.
        outside: The place of time without a call site: ``outside of operators``.
    """
    return "; ".join(f"{ms(one.time)} {one.at(outside)}" for one in _worst(found))


def main_place(found: list[CallSite]) -> str:
    """Return the call site that is named first, with its place; empty if there is none."""
    worst = _worst(found)
    known = [one for one in worst if one.place] or worst
    return known[0].called if known else ""


def can_move(found: list[CallSite]) -> bool:
    """Return whether what is named could run elsewhere: it has places, and none is the step."""
    known = [one for one in _worst(found) if one.place]
    return bool(known) and not any(one.is_step for one in known)


def lines_named(found: list[CallSite], time: float) -> str:
    """Return the worst for the end of a sentence: ``, 41 ms at train.py:22 (main)``.

    Empty if the trace does not have the place.

    Args:
        found: The call sites to name.
        time: The time in ns that the sentence has given already; it is not repeated.
    """
    known = [one for one in _worst(found) if one.place]
    if len(known) == 1 and ms(known[0].time) == ms(time):
        return f", all at {known[0].place}"
    return f", {'; '.join(f'{ms(one.time)} at {one.place}' for one in known)}" if known else ""


def functions_named(found: list[CallSite], time: float) -> str:
    """Return the same by function: ``, 41 ms in sleep, called by main (train.py)``."""
    known = [one for one in _worst(found) if one.place]
    said = [f"{one.what}, called by {one.place}" if one.what else one.place for one in known]
    if len(known) == 1 and ms(known[0].time) == ms(time):
        return f", all in {said[0]}"
    times = "; ".join(f"{ms(one.time)} in {name}" for one, name in zip(known, said, strict=True))
    return f", {times}" if times else ""


def starters_named(found: list[CallSite]) -> str:
    """Return the worst as a sentence: ``Most comes from aten::mm at model.py:7 (forward), 4 ms.``.

    Begins with a space. Empty if the trace does not show what launched the work.
    """
    worst = [f"{one.called or 'elsewhere'}, {ms(one.time)}" for one in _worst(found)]
    return f" Most comes from {'; '.join(worst)}." if worst else ""


def _worst(found: list[CallSite]) -> list[CallSite]:
    whole = sum(one.time for one in found)
    worst = [one for one in found[:_MAX_NAMED] if one.time >= _MIN_SHARE * whole]
    return worst if any(one.what or one.place for one in worst) else []
