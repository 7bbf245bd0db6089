"""One trace with its manifest: what the two say about its origin, and about missing events."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dynprof.analysis.measures.timeline.kernels import communication
from dynprof.analysis.measures.timeline.launches import launches, without_work
from dynprof.analysis.measures.timeline.operators import STEP, is_step
from dynprof.analysis.measures.timeline.steps import HOST_NAME
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
from dynprof.analysis.reading.trace import load_trace
from dynprof.errors import CaptureError
from dynprof.runtime.layout import INFO_DIR, ROLE, is_vendors_view, rank_in_name, rank_name
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.columns import DoubtfulTimes
    from dynprof.analysis.reading.trace import Partner, Trace
    from dynprof.captures.manifest import Manifest

Made = TypeVar("Made")
_RANK = re.compile(rf"\.(?:({ROLE})_)?rank(\d+)\.")
"""Finds role and rank in the trace names that dynprof gives."""

_STEP_LABEL = "user_annotation"
"""The category of labels of steps. In torch 1.8 they have that of operators."""
_VENDORS_INFO = re.compile(r"profiler_info_(\d{1,9})\.json")
_MERGED_RANK = re.compile(r"\[((?:TP|DP|PP|EP|CP|rank)\W?\d+[^\]]*)\] ", re.IGNORECASE)
"""Matches the rank that SGLang puts before a process when it merges ranks."""
_TO_SPLIT = (
    "{path} merges several ranks: {ranks}. Give the traces that it was made of, one for each rank. "
    "To take {one} out of it:\njq 'del(.distributedInfo) | .traceEvents |= "
    """map(select(.pid | tostring | startswith("[{one}]")))' {quoted} > rank-0.json"""
)
_MAX_CATEGORIES = 5
"""Unknown categories that a remark names, the longest first."""
_MIN_CROSSING = 0.01
"""Share of the time in labels and operators that counts twice, from which a remark says so."""
_ACTIVITY = ("device activity", "device activities")
_OF_THE_HOST = OPERATORS | LABELS | FRAMES | CALLS


class ReadTrace:
    """A trace, and the rank and machine that recorded it.

    Args:
        path: Path of the trace. Its manifest is searched for next to it.
        partner: Connection to a process that reads the same trace at the same time.

    Attributes:
        path: Path of the trace.
        trace: Its events.
        manifest: Its manifest; None if dynprof did not record it.

    Raises:
        CaptureError: The trace cannot be read.
    """

    def __init__(self, path: Path, partner: Partner | None = None) -> None:
        self.path, self._partner = path, partner
        if why := _why_not_utf8(path):
            raise CaptureError(f"{str(path)!a} {why}")
        self.trace = load_trace(path, partner)
        of_steps = self.trace.category(OPERATORS) & self.trace.named(is_step)
        self.trace.set_category(of_steps, _STEP_LABEL)
        self.trace.communication = communication(self.trace, self.launches)
        if self._is_merged:
            raise CaptureError(f"{path} merges several ranks; open it with dynprof view")
        _refuse_merged(path, self.trace)
        self.manifest: Manifest | None = find_manifest(path)[1]

    @cached_property
    def launches(self) -> Launches:
        """Device activities and the calls of the host that launched them."""
        return launches(self.trace)

    def compute_once(self, make: Callable[[], Made]) -> Made:
        """Return the result of a slow function. If two processes share a trace, one computes it.

        Raises:
            CaptureError: The process that computes it has ended.
        """
        return self._partner.share(make) if self._partner else make()

    @property
    def _is_merged(self) -> bool:
        """Whether ``dynprof merge`` made it: its devices and steps come from many processes."""
        member = self.trace.members.get("dynprof")
        ranks = member.get("ranks") if isinstance(member, dict) else None
        return isinstance(ranks, list) and any(_int64(rank) is not None for rank in ranks)

    @cached_property
    def base_ns(self) -> int:
        """Offset from its times to ns since the epoch; 0 if a sum would not fit into 64 bits."""
        found = _int64(self.trace.members.get("baseTimeNanoseconds")) or 0
        spans, memory = self.trace.spans, self.trace.memory
        times = (spans["start"], spans["start"] + spans["length"], memory["time"])
        most = max(int(np.abs(column).max(initial=0)) for column in times)
        return found if abs(found) + most < 1 << 63 else 0

    @property
    def rank(self) -> int:
        """The rank: :attr:`recorded_rank`, else the one in the file's name, else 0."""
        recorded = self.recorded_rank
        return (rank_in_name(self.path.name) or 0) if recorded is None else recorded

    @property
    def recorded_rank(self) -> int | None:
        """The rank from the trace, else from its manifest; None if neither tells.

        torch_npu has it in the name of a file next to its folder of tables.
        """
        if (rank := self._distributed("rank")) is not None:
            return rank
        if self.manifest:
            return self.manifest.rank
        above = self.path.parent.parent
        files = above.glob("profiler_info_*.json") if is_vendors_view(self.path) else ()
        found = [_VENDORS_INFO.fullmatch(file.name) for file in files]
        return next((int(one[1]) for one in found if one), None)

    @property
    def rank_suffix(self) -> str:
        """Suffix for the rank in names of the vendor's files; empty if the job is one process."""
        if self.manifest:
            return self.manifest.rank_suffix
        return f"_{self.rank}" if self.world_size > 1 else ""

    @property
    def world_size(self) -> int:
        """The number of ranks; 0 if unknown."""
        size = self._distributed("world_size")
        return size or (self.manifest.world_size if self.manifest else 0)

    def _distributed(self, name: str) -> int | None:
        member = self.trace.members.get("distributedInfo")
        return _int64(member.get(name)) if isinstance(member, dict) else None

    @property
    def host(self) -> str:
        """The name of the machine that recorded it; empty if unknown."""
        named = self.manifest.host if self.manifest else self.trace.members.get("host_name", "")
        return str(named)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that the user attached to it."""
        if self.manifest:
            found = self.manifest.request.config.get("metadata", {})
        else:
            found = self.trace.members.get("metadata", {})
        return found if isinstance(found, dict) else {}

    @property
    def first_device(self) -> int | str:
        """The number of the first device that worked; ``host`` if none did."""
        devices = self.trace.spans["device"][self.trace.category(KERNELS)]
        return int(devices[0]) if len(devices) else HOST_NAME

    @property
    def device_memory(self) -> dict[int, int]:
        """Bytes of memory of each device, by its number."""
        rows = self.trace.members.get("deviceProperties")
        devices = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
        found = [(_int64(one.get("id")), _int64(one.get("totalGlobalMem"))) for one in devices]
        return {number: size for number, size in found if number is not None and size}

    @property
    def device_name(self) -> str:
        """The name of the device that worked; empty if unknown.

        If only one kind of device is described, it is of that kind: the numbers of visible devices
        may differ from those of all devices.
        """
        rows = self.trace.members.get("deviceProperties")
        devices = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
        names = {_int64(one.get("id")): str(one.get("name") or "") for one in devices}
        if self.first_device == HOST_NAME:
            return ""
        if self.first_device in names:
            return names[int(self.first_device)]
        kinds = set(names.values())
        return kinds.pop() if len(kinds) == 1 else ""


def _refuse_merged(path: Path, trace: Trace) -> None:
    """Refuse a trace that another tool made of the traces of several ranks.

    Raises:
        CaptureError: It names several ranks, several processes mark the same step, or one marks
            it twice at a time.
    """
    pids = dict.fromkeys(str(pid) for pid, _ in trace.tables["thread"])
    ranks = sorted({found[1] for pid in pids if (found := _MERGED_RANK.match(pid))})
    if len(ranks) > 1:
        named = {"path": path, "ranks": ", ".join(ranks), "one": ranks[0]}
        raise CaptureError(_TO_SPLIT.format(**named, quoted=shlex.quote(str(path))))
    marks = np.flatnonzero(trace.named(lambda name: name.startswith(STEP)) & trace.category(LABELS))
    pairs = zip(
        *(trace.spans[column][marks].tolist() for column in ("name", "thread")), strict=True
    )
    by_step: dict[int, set[str]] = {}
    for name, thread in set(pairs):
        by_step.setdefault(name, set()).add(str(trace.tables["thread"][thread][0]))
    most = max(by_step.values(), key=len, default=set())
    if len(most) > 1:
        raise CaptureError(
            f"{path} has the same step of several processes: {', '.join(sorted(most))}. Give the "
            "traces that it was made of, one for each rank"
        )
    if _runs_twice(trace, marks):
        raise CaptureError(
            f"{path} has the same steps and calls twice at a time: it merges several ranks. Give "
            "the traces that it was made of, one for each rank"
        )


def _runs_twice(trace: Trace, marks: NDArray[np.int64]) -> bool:
    """Return whether a thread marks a step again during the same step, with its calls' numbers.

    The processes of ranks may have the same number, as in containers.

    Args:
        trace: The trace.
        marks: The marks of its steps, in order of start.
    """
    start, spans = trace.spans["start"], trace.spans
    end, last = start + spans["length"], dict[tuple[int, int], int]()
    again = False
    for place in marks.tolist():
        which = int(spans["name"][place]), int(spans["thread"][place])
        before = last.setdefault(which, place)
        again = again or start[before] < start[place] < end[before]
    if not again:
        return False
    kind, column = (LAUNCHES, "correlation")
    if not trace.category(LAUNCHES).any():
        kind, column = (OPERATORS, "external_id")
    calls = np.flatnonzero(trace.category(kind) & (spans[column] > 0))
    keys = np.stack([spans[name][calls] for name in (column, "name", "thread")])
    return len(np.unique(keys, axis=1).T) < len(calls)


def _why_not_utf8(path: Path) -> str:
    """Return why a name cannot be written as UTF-8; a file system may hold any bytes."""
    if not any("\ud800" <= letter <= "\udfff" for letter in str(path)):
        return ""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return "is not UTF-8; rename it"
    return f"is UTF-8, but Python reads names as {sys.getfilesystemencoding()}; set PYTHONUTF8=1"


def _int64(value: object) -> int | None:
    """Return a value that is an integer of 64 bits; None for any other value in a file."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return value
    return None


def find_manifest(path: Path) -> tuple[Path, Manifest] | tuple[None, None]:
    """Return the path and the manifest of a trace.

    The manifest of the rank in the trace's name is tried first.
    """
    folder = path.parent / INFO_DIR
    rank = _RANK.search(path.name)
    likely = [folder / f"{rank_name(rank[1] or '', int(rank[2]))}.info.json"] if rank else []
    for candidate in chain(likely, sorted(folder.glob("*.info.json")) if folder.is_dir() else ()):
        from dynprof.captures.manifest import load_manifest  # its import takes as long as numpy's

        with contextlib.suppress(CaptureError):
            manifest = load_manifest(candidate)
            if manifest.trace == path.name:
                return candidate, manifest
    return None, None


class Truncation:
    """Where a trace is truncated, and what is unknown because of that.

    Kineto writes the host's events first, thread by thread, and device activities after them. These
    are in the order in which it got the buffers, not in order of time. Missing events may belong to
    any step.

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
        found += [*_about_the_format(self._trace.doubtful), *about_times(self._trace.doubtful)]
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
    rest = unknown[_MAX_CATEGORIES:]
    said = [
        f"{trace.tables['category'][code] or 'no category'} "
        f"({counted(events[code], 'event')}, {times[code] / 1e6:,.2f} ms)"
        for code in unknown[:_MAX_CATEGORIES]
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
    """Yield a sentence about labels that cross, if their self times exceed the time that passed."""
    chosen = trace.category(OPERATORS, LABELS, CALLS) & ~trace.named(is_step)
    columns = (trace.spans[name][chosen] for name in ("start", "length", "thread"))
    count, twice = counted_twice(*columns)
    if twice > _MIN_CROSSING * covered(trace.when(chosen)):
        crossing = ("label or operator crosses another", "labels or operators cross others")
        yield (
            f"{counted(count, *crossing)} of the same thread, as those of coroutines do. Their "
            f"self times add up to {twice / 1e6:,.3g} ms more than the time that passed."
        )


def about_times(doubtful: DoubtfulTimes) -> Iterator[str]:
    """Yield sentences about times that cannot be."""
    if doubtful.unreadable:
        yield (
            f"{counted(doubtful.unreadable, 'event')} had a time that is missing, infinite or not "
            "a number; without them totals are too small."
        )
    if doubtful.unpaired:
        yield (
            f"{counted(doubtful.unpaired, 'event')} begin a span that never ends, or end "
            "one that never began; without them totals are too small."
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
