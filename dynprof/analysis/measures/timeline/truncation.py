"""What a trace still tells if its file is truncated or damaged, or has times that cannot be.

Kineto writes the host's events first, thread by thread, and device activities after them. These
are in the order in which it got the buffers, not in order of time. Missing events may belong to
any step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import without_work
from dynprof.analysis.measures.timeline.operators import is_step
from dynprof.analysis.reading.events import (
    CALLS,
    FRAMES,
    KERNELS,
    KNOWN,
    LABELS,
    LAUNCHES,
    ON_DEVICE,
    OPERATORS,
)
from dynprof.analysis.reading.spans import counted_twice, covered
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.times import DoubtfulTimes
    from dynprof.analysis.reading.trace import Trace
    from dynprof.captures.manifest import Manifest

_MOST_CATEGORIES = 5
"""Unknown categories that a remark names, the longest first."""
_MIN_CROSSING = 0.01
"""Share of the time in labels and operators that counts twice, from which a remark says so."""
_ACTIVITY = ("device activity", "device activities")
_OF_THE_HOST = OPERATORS | LABELS | FRAMES | CALLS


class Truncation:
    """Where a trace is truncated, and what is unknown because of that.

    Args:
        trace: The trace.
        manifest: Its manifest, if there is one.
        marked: The steps that it still marks.

    Attributes:
        host_incomplete: Whether events of the host are missing.
        devices_incomplete: Whether device activities are or may be missing.
        lost_work: How many calls launch work that is not in the trace, if it has no kernel.
        complete_steps: The steps of which all host events are present.
    """

    def __init__(self, trace: Trace, manifest: Manifest | None, marked: list[MarkedStep]) -> None:
        self._unknown = _unknown_categories(trace)
        self._trace, self._truncated = trace, trace.truncated
        self.host_incomplete = not trace.complete and _ends_on_host(trace)
        self.lost_work = 0 if trace.category(KERNELS).any() else int(without_work(trace).sum())
        self.devices_incomplete = not trace.complete and _may_have_devices(trace, manifest)
        self.complete_steps = [] if self.host_incomplete else marked

    @property
    def incomplete(self) -> bool:
        """Whether events of any step may be missing."""
        return self.host_incomplete or self.devices_incomplete

    @property
    def device_unknown(self) -> bool:
        """Whether a device worked, and nothing says what it did in each step."""
        worked = bool(self._trace.category(ON_DEVICE, LAUNCHES).any())
        return self.lost_work > 0 or (self.devices_incomplete and worked)

    @property
    def judged(self) -> bool:
        """Whether the trace tells enough for findings."""
        return not self.incomplete and not self.lost_work

    @property
    def damaged(self) -> bool:
        """Whether a part of the file cannot be read, so that all numbers may be wrong."""
        return bool(self._trace.lost.places or self._truncated)

    def sentences(self) -> list[str]:
        """Return sentences that describe what is missing."""
        found = []
        names, lost = self._trace.repaired, self._trace.lost
        if names.places:
            found.append(
                f"{counted(names.places, 'name')} in the trace had to be repaired: a quote or "
                "backslash is not escaped. The file is not valid JSON from byte "
                f"{names.first:,} on; these events were read."
            )
        if lost.places:
            found.append(
                f"The trace is not valid JSON at {counted(lost.places, 'place')}, the first at "
                f"byte {lost.first:,}; the damaged events there are left out."
            )
        found += [*_about_the_format(self._trace.doubtful), *_about_times(self._trace.doubtful)]
        found += _about_crossing(self._trace)
        if self._unknown:
            found.append(
                "dynprof does not know these categories of events, so nothing counts their time: "
                f"{', '.join(self._unknown)}."
            )
        if self._truncated:
            reason = f"{self._truncated[0].upper()}{self._truncated[1:]}"
            found.append(f"{reason}; the readable part was analysed.")
        if self.host_incomplete:
            found.append(
                "A trace holds one thread after the other: events may be missing from any step. "
                "No step counts as complete, and none is judged."
            )
        elif self.devices_incomplete:
            found.append(
                "Kineto writes device activities after the host's, not in order of time. They may "
                "be missing from any step, so no step is judged."
            )
        elif self.lost_work:
            found.append(
                f"The trace has {counted(self.lost_work, 'launch', 'launches')} without their "
                "work, and no kernel. The host may wait for that work, so there are no findings."
            )
        return found


def _unknown_categories(trace: Trace) -> list[str]:
    """Return each category that the analysis does not know, with its events and their time."""
    codes, counts = np.unique(trace.spans["category"], return_counts=True)
    events = dict(zip(codes.tolist(), counts.tolist(), strict=True))
    unknown = [code for code in events if trace.tables["category"][code].lower() not in KNOWN]
    times = {
        code: int(trace.spans["length"][trace.spans["category"] == code].sum()) for code in unknown
    }
    unknown.sort(key=lambda code: -times[code])
    rest = unknown[_MOST_CATEGORIES:]
    said = [
        f"{trace.tables['category'][code] or 'no category'} "
        f"({counted(events[code], 'event')}, {times[code] / 1e6:,.2f} ms)"
        for code in unknown[:_MOST_CATEGORIES]
    ]
    if rest:
        count, time = (sum(values[code] for code in rest) for values in (events, times))
        said.append(f"{len(rest):,} more ({counted(count, 'event')}, {time / 1e6:,.2f} ms)")
    return said


def _about_the_format(doubtful: DoubtfulTimes) -> Iterator[str]:
    """Yield sentences about entries and units that the format does not have."""
    if doubtful.no_events:
        yield (
            f"{counted(doubtful.no_events, 'entry', 'entries')} of the list of events "
            f"{'is no event' if doubtful.no_events == 1 else 'are no events'}, such as a null or "
            "an object without a phase; without them totals may be too small."
        )
    if doubtful.in_nanoseconds:
        yield (
            f"The times of {counted(doubtful.in_nanoseconds, 'event')} are nanoseconds, where the "
            "format has microseconds; they were read as nanoseconds."
        )
    if doubtful.too_short:
        yield (
            "No event lasts a microsecond. Are the times in seconds? The format has microseconds."
        )


def _about_crossing(trace: Trace) -> Iterator[str]:
    """Yield a sentence about labels that cross, if their own times add up to more than the time."""
    chosen = trace.category(OPERATORS, LABELS, CALLS) & ~trace.named(is_step)
    columns = (trace.spans[name][chosen] for name in ("start", "length", "thread"))
    count, twice = counted_twice(*columns)
    if twice > _MIN_CROSSING * covered(trace.when(chosen)):
        crossing = ("label or operator crosses another", "labels or operators cross others")
        yield (
            f"{counted(count, *crossing)} of the same thread, as those of coroutines do. Their own "
            f"times add up to {twice / 1e6:,.3g} ms more than the time that passed."
        )


def _about_times(doubtful: DoubtfulTimes) -> Iterator[str]:
    """Yield sentences about times that cannot be."""
    if doubtful.unreadable:
        yield (
            f"{counted(doubtful.unreadable, 'event')} had a time that is missing, infinite or not "
            "a number; without them totals are too small."
        )
    if doubtful.unpaired:
        yield (
            f"{counted(doubtful.unpaired, 'event')} begin a span without an end, or end one "
            "without a begin; without them totals are too small."
        )
    if doubtful.asynchronous:
        yield (
            f"{counted(doubtful.asynchronous, 'asynchronous range')} of "
            f"{doubtful.asynchronous_ns / 1e6:,.2f} ms together (phases b and e) belong to no "
            "thread, so nothing counts their time."
        )
    if doubtful.negative:
        yield (
            f"{counted(doubtful.negative, 'event')} had a negative duration; without them totals "
            "are too small."
        )
    if doubtful.far:
        yield (
            f"{counted(doubtful.far, 'event')} began or ended more than a day from the others, "
            "which cannot be; without them totals are too small."
        )
    if doubtful.not_measured:
        yield (
            f"The profiler did not measure {counted(doubtful.not_measured, *_ACTIVITY)}: "
            "the start is 0. They are left out; the time of the device is too small."
        )
    if doubtful.overlong:
        yield (
            f"{counted(doubtful.overlong, *_ACTIVITY)} outlasted the "
            "next one on the same stream, which cannot be; each counts up to the start of the next."
        )


def _ends_on_host(trace: Trace) -> bool:
    """Return whether the last event in the file is one of the host."""
    if trace.last < 0:
        return True
    category = trace.tables["category"][trace.spans["category"][trace.last]]
    return category.lower() in _OF_THE_HOST


def _may_have_devices(trace: Trace, manifest: Manifest | None) -> bool:
    """Return whether a device was recorded, or may have been."""
    if trace.category(ON_DEVICE, LAUNCHES).any():
        return True
    if manifest is not None:
        return any(name != "CPU" for name in manifest.activities)
    if trace.category(CALLS).any():  # from VizTracer
        return False
    # Kineto writes an empty list if it knows no device.
    return trace.members.get("deviceProperties") != []
