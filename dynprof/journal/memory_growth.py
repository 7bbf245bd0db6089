"""The memory of a rank over time: when it grows, when little is left, and what is written then.

The journal's thread reads it every two seconds and keeps the least value of each minute, so that
short peaks do not count. Memory grows if it rises evenly over twelve blocks, of five minutes each,
or of one minute if little is left. A cache fills ever more slowly, and an allocator that fragments
rises in a few jumps.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import tracemalloc
from collections import deque
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, starmap
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import psutil

from dynprof.errors import reason
from dynprof.journal.pace_changes import moment
from dynprof.runtime.memory import limits
from dynprof.runtime.plural import counted
from dynprof.runtime.safe_write import write_atomic
from dynprof.runtime.stacks import calling_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dynprof.backends.torch.out_of_memory import OutOfMemory
    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.clock import Clock
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.runtime.layout import Layout
    from dynprof.runtime.memory import Limit

LOOK_S = 2.0
"""Seconds between two readings; one takes 0.3 ms, or milliseconds in a cgroup."""
MINUTE_S, HOUR_S = 60, 3600
MAX_MINUTES, MAX_LIFE = 1440, 720
"""Readings kept: the minutes of a day, and the ten minutes of five days; in a file, 60 kB."""
LIFE_S = 600
"""Seconds between two readings of the life of the job."""
BLOCKS = 12
"""Blocks over which memory must rise."""
STEADY, SUDDEN = 0.9, 2.0
"""Limits of the rise from the middle third of the blocks to the last, as a share of that before.

Less is a cache that fills. More is memory that has just begun to rise, as in an evaluation."""
JUMP = 0.25
"""The largest share of the rise in one block; more is a plateau of an allocator."""
MIN_RISE_SHARE = 0.005
"""The least rise as a share of the memory; allocators vary by less."""
MAX_HALTED_SHARE = 0.25
"""The share of its rate below which growth has stopped."""
MIN_FURTHER_GROWTH = 1.25
"""Growth is logged again once the memory has grown by this factor since."""
LOW, ENOUGH = 0.05, 0.1
"""Shares of a limit: a warning when less is left, and another one only after more was."""
OOM_AGAIN_S = 600.0
"""Seconds in which further failed allocations are only counted: a script may catch and repeat."""
MAX_LINES = 30
"""Lines of Python, and child processes, that a file names."""
TRACING_FACTOR = 4
"""A snapshot of tracemalloc may need that many times the memory of tracemalloc itself."""


class _Rule(NamedTuple):
    """When memory grows.

    Attributes:
        minutes: The length of a block.
        warm_up_s: The seconds from the first reading on that do not count: the job loads data,
            compiles and fills its caches.
        least_mb: The least rise from the first third of the blocks to the last.
        hours_left: The rise counts only if it would use up what is left in less time.
    """

    minutes: int
    warm_up_s: float
    least_mb: float
    hours_left: float


_RULES = _Rule(1, 600.0, 100.0, 0.5), _Rule(5, 1800.0, 30.0, math.inf)
"""Growth that leaves less than half an hour is found in a quarter of one, all other in an hour."""


Whole = Annotated[int, msgspec.Meta(ge=-(10**15), le=10**15)]
"""A whole number in a file."""


class MemoryReading(NamedTuple):
    """The memory of a rank; over some time, the least of each value.

    Attributes:
        at_s: When, in seconds since the epoch.
        step: The running step.
        resident_mb: Resident memory of the process in MB (10^6 bytes).
        allocated_mb: What tensors use on all devices.
        reserved_mb: What the devices' allocator holds.
    """

    at_s: int = 0
    step: int = 0
    resident_mb: int = 0
    allocated_mb: int = 0
    reserved_mb: int = 0


@dataclass(frozen=True)
class PackedMemory:
    """Readings in a file: for each value of a reading, the differences from the reading before."""

    columns: tuple[tuple[Whole, ...], ...] = ()

    @classmethod
    def of(cls, readings: Iterable[MemoryReading]) -> PackedMemory:
        """Return readings in this form."""
        columns = zip(*readings, strict=True)
        return cls(tuple(tuple(map(operator.sub, one, (0, *one[:-1]))) for one in columns))

    def readings(self) -> list[MemoryReading]:
        """Return the readings."""
        columns = map(accumulate, self.columns)
        return list(starmap(MemoryReading, zip(*columns, strict=True)))

    def check(self) -> None:
        """Check readings of a file.

        Raises:
            ValueError: They are incomplete.
        """
        lengths = {len(one) for one in self.columns}
        if self.columns and (len(self.columns) != len(MemoryReading._fields) or len(lengths) > 1):
            raise ValueError("its readings of the memory are incomplete")


@dataclass(frozen=True)
class Growth:
    """Memory that grows.

    Attributes:
        kind: ``resident`` or ``device``.
        since_s: Since when, in seconds since the epoch, to a block.
        step: The step at that time.
        from_mb: The memory then.
        to_mb: The memory when this was written.
        mb_per_hour: The rise in an hour.
    """

    kind: str
    since_s: float
    step: int
    from_mb: float
    to_mb: float
    mb_per_hour: float

    def in_words(self, now_s: float) -> str:
        """Return ``resident memory grows by 120 MB an hour since 01:00:00 (step 600) ...``."""
        since = f"since {moment(self.since_s, now_s)} (step {self.step:,})"
        rise = f"{self.from_mb:,.0f} MB then, {self.to_mb:,.0f} MB now"
        return f"{self.kind} memory grows by {self.mb_per_hour:,.0f} MB an hour {since}: {rise}"


@dataclass(frozen=True)
class MemoryStatus:
    """The memory of a rank, in MB (10^6 bytes).

    Attributes:
        resident_mb: Its resident memory; 0 while unknown.
        allocated_mb: What its tensors use on devices that torch calls CUDA.
        reserved_mb: What torch's allocator holds there.
        growths: What grows.
        low: Which limit is nearly used up; empty for none.
    """

    resident_mb: int = 0
    allocated_mb: int = 0
    reserved_mb: int = 0
    growths: tuple[Growth, ...] = ()
    low: str = ""


class _Minute(NamedTuple):
    at_s: float
    step: int
    mb: float


class GrowthSearch:
    """Finds growth in one value, given once a minute.

    Args:
        kind: What the value is, as :class:`Growth` has it.

    Attributes:
        growth: The present growth.
    """

    def __init__(self, kind: str) -> None:
        self.growth: Growth | None = None
        self._kind = kind
        self._minutes: deque[_Minute] = deque(maxlen=MAX_MINUTES)
        self._rule = _RULES[0]
        self._began_s: float | None = None
        self._logged_mb = 0.0

    def add(self, at_s: float, step: int, mb: float, left_mb: float = math.inf) -> Growth | None:
        """Take the value of a minute; return growth that has just been found.

        Args:
            at_s: Seconds since the epoch.
            step: The running step.
            mb: The least value of the minute.
            left_mb: The memory that is left.
        """
        if self._began_s is None:
            self._began_s = at_s
        self._minutes.append(_Minute(at_s, step, mb))
        if self.growth:
            self._update(self.growth)
            return None
        for rule in _RULES:
            warm_s = self._began_s + rule.warm_up_s
            usable = [one for one in self._minutes if one.at_s >= warm_s]
            growth = self._found(usable, rule, left_mb)
            if growth and mb >= MIN_FURTHER_GROWTH * self._logged_mb:
                self.growth, self._rule, self._logged_mb = growth, rule, mb
                return growth
        return None

    def _found(self, usable: Sequence[_Minute], rule: _Rule, left_mb: float) -> Growth | None:
        length = BLOCKS * rule.minutes
        if len(usable) < length:
            return None
        blocks = _blocks(usable[-length:], rule.minutes)
        values = [one.mb for one in blocks]
        third = BLOCKS // 3
        first_mb, middle_mb, last_mb = (
            median(values[at : at + third]) for at in (0, third, 2 * third)
        )
        if last_mb - first_mb < max(rule.least_mb, MIN_RISE_SHARE * first_mb):
            return None
        rise_mb = middle_mb - first_mb
        if not STEADY * rise_mb <= last_mb - middle_mb <= SUDDEN * rise_mb:
            return None
        if max(b - a for a, b in pairwise(values)) > JUMP * (values[-1] - values[0]):
            return None
        per_hour = (last_mb - middle_mb) / (third * rule.minutes * MINUTE_S) * HOUR_S
        if left_mb > rule.hours_left * per_hour:
            return None
        onset = self._onset(blocks[0], rule, last_mb, per_hour)
        return Growth(self._kind, onset.at_s, onset.step, onset.mb, usable[-1].mb, per_hour)

    def _onset(self, low: _Minute, rule: _Rule, last_mb: float, per_hour: float) -> _Minute:
        """Return the minute in which the rise began: its line meets the last low before it."""
        minutes = list(self._minutes)
        for block in reversed(_blocks([m for m in minutes if m.at_s < low.at_s], rule.minutes)):
            if block.mb >= low.mb:
                break
            low = block
        last_s = (
            minutes[-1].at_s - BLOCKS * rule.minutes * MINUTE_S / 6
        )  # the middle of the last third
        began_s = last_s - (last_mb - low.mb) / per_hour * HOUR_S
        return next(one for one in minutes if one.at_s >= max(low.at_s, began_s))

    def _update(self, growth: Growth) -> None:
        """Bring the growth up to date, or end it."""
        length = BLOCKS // 2 * self._rule.minutes
        blocks = _blocks(list(self._minutes)[-length:], self._rule.minutes)
        hours = (blocks[-1].at_s - blocks[0].at_s) / HOUR_S
        rise_mb, to_mb = blocks[-1].mb - blocks[0].mb, self._minutes[-1].mb
        is_halted = rise_mb < MAX_HALTED_SHARE * growth.mb_per_hour * hours
        self.growth = None if is_halted else replace(growth, to_mb=to_mb)


def _blocks(minutes: Sequence[_Minute], length: int) -> list[_Minute]:
    """Return the last lowest minute of each block; the newest block is whole."""
    starts = range(len(minutes) % length, len(minutes), length)
    return [min(reversed(minutes[at : at + length]), key=lambda one: one.mb) for at in starts]


class MemoryWatch:
    """Reads the memory of this process, and writes a file when that is needed.

    Args:
        layout: Returns the paths of this process.
        inbox: Counts the steps.
        clock: The clock.
        info: Logs an event.
        warn: Logs what an operator should know.
        boundary: Keeps failures of writing from the job.
        resident_mb: Returns the resident memory.

    Attributes:
        status: The memory now.
        minutes: The least of each minute of a day.
        life: The least of every ten minutes of the job.
    """

    def __init__(
        self,
        layout: Callable[[], Layout],
        inbox: Inbox,
        clock: Clock,
        info: Callable[[str], None],
        warn: Callable[[str], None],
        boundary: ErrorBoundary,
        resident_mb: Callable[[], float],
    ) -> None:
        from dynprof.backends.torch import out_of_memory  # only a session needs backends

        self._device = out_of_memory
        self.status = MemoryStatus()
        self.minutes: deque[MemoryReading] = deque(maxlen=MAX_MINUTES)
        self.life: deque[MemoryReading] = deque(maxlen=MAX_LIFE)
        self._layout, self._inbox, self._clock = layout, inbox, clock
        self._info, self._warn = info, warn
        self._boundary, self._resident_mb = boundary, resident_mb
        self._searches = GrowthSearch("resident"), GrowthSearch("device")
        self._due_s = -math.inf
        self._low: set[str] = set()
        self._oom_s, self._oom_count = -math.inf, 0
        self._act, self._has_ended = self._note_out_of_memory, False

    def check(self) -> None:
        """Take a reading if one is due, on the journal's thread."""
        now_s = self._clock.now_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + LOOK_S
        self._attach()
        device = self._device.device_memory()
        at_s = self._clock.wall_s()
        reading = MemoryReading(
            int(at_s),
            self._inbox.step,
            round(self._resident_mb()),
            round(device.allocated_mb),
            round(device.reserved_mb),
        )
        found = limits()
        for limit in found:
            self._check_limit(limit, reading)
        ended = self._keep(reading)
        if ended:
            self._search(ended, found)
        growths = tuple(one.growth for one in self._searches if one.growth)
        low = "; ".join(_left(one) for one in found if one.name in self._low)
        self.status = MemoryStatus(*reading[2:], growths=growths, low=low)

    def continue_after(self, minutes: PackedMemory, life: PackedMemory) -> None:
        """Put the readings of a former process of the rank before those of this one."""
        for ring, former in (self.minutes, minutes), (self.life, life):
            own = list(ring)
            first_s = own[0].at_s if own else math.inf
            ring.clear()  # the clock may have been set back since
            ring.extend(one for one in former.readings() if one.at_s < first_s)
            ring.extend(own)

    def end(self) -> None:
        """Act on no more failed allocations."""
        self._has_ended = True
        if self._device.OBSERVER.act == self._act:
            self._device.OBSERVER.act = None

    def _attach(self) -> None:
        if self._has_ended:
            return
        self._device.OBSERVER.act = self._act
        try:
            self._device.OBSERVER.attach()
        except RuntimeError as error:
            text = f"failed allocations on the device are not noticed: {reason(error)}"
            self._info(f"{text}; this allocator has no observers")

    def _keep(self, reading: MemoryReading) -> MemoryReading | None:
        """Add a reading to those of its minute, and return the minute before if that has ended."""
        before = self.minutes[-1] if self.minutes else None
        is_new = _add(self.minutes, reading, MINUTE_S)
        _add(self.life, reading, LIFE_S)
        return before if is_new else None

    def _search(self, minute: MemoryReading, found: Iterable[Limit]) -> None:
        left_mb = min(one.left_mb for one in found)
        values = (minute.resident_mb, left_mb), (minute.allocated_mb, math.inf)
        for search, (mb, left) in zip(self._searches, values, strict=True):
            before = search.growth
            if growth := search.add(minute.at_s, minute.step, mb, left):
                text = growth.in_words(self._clock.wall_s())
                written = self._write(text, with_snapshot=growth.kind == "device")
                self._warn(f"{text}; {written}")
            elif before and not search.growth:
                text = f"{before.kind} memory has stopped growing, at {before.to_mb:,.0f} MB"
                self._info(text)

    def _check_limit(self, limit: Limit, reading: MemoryReading) -> None:
        if limit.left_mb > ENOUGH * limit.total_mb:
            self._low.discard(limit.name)
        elif limit.left_mb < LOW * limit.total_mb and limit.name not in self._low:
            self._low.add(limit.name)
            text = f"{_left(limit)}; this process has {reading.resident_mb:,} MB resident"
            self._warn(f"memory is low: {text}; {self._write(_left(limit))}")

    def _note_out_of_memory(self, failed: OutOfMemory) -> None:
        """Write what is known of a failed allocation, on its thread."""
        self._boundary.attempt(
            "writing about a failed allocation", lambda: self._write_failed(failed)
        )

    def _write_failed(self, failed: OutOfMemory) -> None:
        now_s = self._clock.now_s()
        self._oom_count += 1
        if now_s - self._oom_s < OOM_AGAIN_S:
            return
        times, self._oom_count, self._oom_s = self._oom_count, 0, now_s
        text = (
            f"out of memory on device {failed.device}: {failed.wanted_mb:,.0f} MB were requested "
            f"and {failed.free_mb:,.0f} of {failed.total_mb:,.0f} MB are free"
        )
        if place := calling_place():
            text += f", at {place}"
        if times > 1:
            text += f"; {counted(times - 1, 'earlier one was', 'earlier ones were')} not logged"
        suffix = ".out_of_memory"
        self._warn(f"{text}; {self._write(text, suffix=suffix, with_snapshot=True)}")

    def _write(self, why: str, *, suffix: str = ".memory", with_snapshot: bool = False) -> str:
        """Write a file next to the log; return where it is or why not, for a log line."""
        layout = self._layout()
        path = layout.log.with_suffix(suffix)
        content = self._content(why)
        try:
            write_atomic(path, f"{json.dumps(content, indent=1)}\n")
            text = f"more is in {path.relative_to(layout.root)}"
            if with_snapshot and (snapshot := self._device.write_snapshot(path)):
                text += f", and the allocator's snapshot in {snapshot.name}"
        except OSError as error:
            return f"more cannot be written: {reason(error)}"
        content["child_processes"] = _children(layout.pid)
        content["python_allocations"] = _python_allocations()
        with contextlib.suppress(OSError):  # the first part is there
            write_atomic(path, f"{json.dumps(content, indent=1)}\n")
        return text

    def _content(self, why: str) -> dict[str, Any]:
        """Return what is known without much work."""
        layout, device = self._layout(), self._device.device_memory()
        return {
            "why": why,
            "at": self._clock.wall_s(),
            "rank": layout.rank,
            "step": self._inbox.step,
            "resident_mb": round(self._resident_mb(), 1),
            "device_allocated_mb": round(device.allocated_mb, 1),
            "device_reserved_mb": round(device.reserved_mb, 1),
            "limits": [one._asdict() for one in limits()],
            "readings": MemoryReading._fields,
            "minutes": list(self.minutes),
            "ten_minutes": list(self.life),
        }


def _add(ring: deque[MemoryReading], reading: MemoryReading, apart_s: float) -> bool:
    """Add a reading, or lower the last one of the same time; return whether it is a new one."""
    last = ring[-1] if ring else None
    if last is None or last.at_s // apart_s != reading.at_s // apart_s:
        ring.append(reading)
        return last is not None
    ring[-1] = MemoryReading(*last[:2], *map(min, last[2:], reading[2:]))
    return False


def _left(limit: Limit) -> str:
    return f"{limit.name} has {limit.left_mb:,.0f} of {limit.total_mb:,.0f} MB left"


def _children(pid: int) -> list[dict[str, Any]]:
    """Return the child processes with their resident memory, the largest first."""
    found: list[tuple[float, int, str]] = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found.append((child.memory_info().rss / 1e6, child.pid, child.name()))
    names = ("resident_mb", "pid", "name")
    return [dict(zip(names, one, strict=True)) for one in sorted(found, reverse=True)[:MAX_LINES]]


def _python_allocations() -> list[str]:
    """Return the lines of Python with the most memory, or why they are not known."""
    if not tracemalloc.is_tracing():
        return ["unknown: start the job with PYTHONTRACEMALLOC=1"]
    needed_mb = TRACING_FACTOR * tracemalloc.get_tracemalloc_memory() / 1e6
    left_mb = min(one.left_mb for one in limits())
    if needed_mb > left_mb:
        return [f"not read: that may need {needed_mb:,.0f} MB, and {left_mb:,.0f} MB are left"]
    lines = tracemalloc.take_snapshot().statistics("lineno")
    return [
        f"{one.size / 1e6:,.1f} MB in {counted(one.count, 'block')}: {one.traceback[0]}"
        for one in lines[:MAX_LINES]
    ]
