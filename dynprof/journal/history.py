"""The step history of a rank: readings of its step counter, in memory and in a file.

The journal's thread takes one reading every second. It keeps seconds for an hour, minutes for a
day, and ten minutes for the life of the job. The training thread does nothing for it. The file is
next to the status file of the rank; a process that is restarted continues it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from dynprof.errors import CaptureError, reason
from dynprof.journal.memory_growth import Growth, MemoryReading, PackedMemory
from dynprof.journal.pace_changes import PaceChange, PaceChanges, RecentPace, duration, paces_ms
from dynprof.journal.status import load_record
from dynprof.runtime.job_files import check_values
from dynprof.runtime.layout import HISTORY_SUFFIX
from dynprof.runtime.safe_write import remove, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from dynprof.journal.journal import Journal
    from dynprof.journal.memory_growth import MemoryWatch
    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.clock import Clock

HOUR_S, DAY_S, MINUTE_S, TEN_MINUTES_S = 3600, 86_400, 60, 600
MAX_SECONDS, MAX_MINUTES, MAX_LIFE = HOUR_S, DAY_S // MINUTE_S, 30 * DAY_S // TEN_MINUTES_S
"""Readings kept of each kind. After 30 days, those of the last kind are 20 minutes apart."""
MAX_BYTES = 600_000
"""Largest file in bytes: 30 days of 5 ms steps have 128 kB, of 0.05 ms steps some 200 kB, and the
largest values in all places 560 kB. So each file that is written can be read."""
CHANGED = "the pace changed: "
"""Start of the log's line about a change of the pace."""
MAX_EVENTS = 100
"""Changes of the pace, and restarts, that are kept, the newest."""
WRITE_S = 30
"""Readings between two writes; a process that is killed loses those since the last one."""
MEDIAN_S = 60
"""Readings between two computations of the median of the last hour."""
RECENT_BUCKETS = 24
"""Values of the last hour in the status."""
REFRESH_S = 5
"""Readings between two computations of these values: the status is written as often."""
STILL_S, STILL_STEPS = 30.0, 3
"""Seconds and mean steps in which no step ends, from which on the pace has no value."""
STEPS, WINDOW, BREAK = 0, 1, 2
"""Kinds of a reading. ``WINDOW``: a window was recorded or saved since the last one. ``BREAK``: the
steps since the last one are unknown, as the process began or the steps were renumbered."""


class Reading(NamedTuple):
    """A reading of the step counter.

    Attributes:
        at_ms: When, in milliseconds since the epoch.
        step: The running step.
        kind: What was special since the reading before; the largest one applies.
    """

    at_ms: int
    step: int
    kind: int


Whole = Annotated[int, msgspec.Meta(ge=-(10**15), le=10**15)]
"""A whole number in a file; its limits are those of :func:`check_values`, which is slower."""


@dataclass(frozen=True)
class Packed:
    """Readings in a file: the first one, and the differences of the others from the one before."""

    at_ms: Whole = 0
    step: Whole = 0
    more_ms: tuple[Whole, ...] = ()
    more_steps: tuple[Whole, ...] = ()
    kinds: tuple[Whole, ...] = ()

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> Packed:
        """Return readings in this form."""
        if not readings:
            return cls()
        at_ms, steps, kinds = zip(*readings, strict=True)
        return cls(at_ms[0], steps[0], _differences(at_ms), _differences(steps), kinds)

    def readings(self) -> list[Reading]:
        """Return the readings."""
        if not self.kinds:
            return []
        at_ms = itertools.accumulate(self.more_ms, initial=self.at_ms)
        steps = itertools.accumulate(self.more_steps, initial=self.step)
        return list(itertools.starmap(Reading, zip(at_ms, steps, self.kinds, strict=True)))

    def check(self) -> None:
        """Check readings of a file.

        Raises:
            ValueError: They are not in the order of time, of no kind, or incomplete.
        """
        lengths = {len(self.more_ms), len(self.more_steps), max(0, len(self.kinds) - 1)}
        is_ordered = min(self.more_ms, default=0) >= 0
        if len(lengths) > 1 or not is_ordered or not {*self.kinds} <= {STEPS, WINDOW, BREAK}:
            raise ValueError("its readings are incomplete or not in order")


def _differences(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(operator.sub, values[1:], values))


@dataclass(frozen=True)
class HistoryRecord:
    """The content of a history file.

    Attributes:
        rank: The rank.
        role: Its role; empty in a job without roles.
        host: Name of the machine of the process that wrote it.
        pid: Id of that process.
        written_at: Time of writing, in seconds since the epoch.
        hour_ms: Median time of a step in the hour before; None if unknown.
        seconds: Readings of the last hour.
        minutes: Readings of the last day.
        life: Readings of the job, some ten minutes apart.
        changes: The newest changes of the pace, oldest first.
        restarts: Seconds since the epoch and step, of each process that continued the file.
        memory_minutes: The memory of the last day, the least of each minute.
        memory_life: The memory of five days, the least of every ten minutes.
        growths: What memory grows now.
    """

    rank: int = 0
    role: str = ""
    host: str = ""
    pid: int = 0
    written_at: float = 0.0
    hour_ms: float | None = None
    seconds: Packed = field(default_factory=Packed)
    minutes: Packed = field(default_factory=Packed)
    life: Packed = field(default_factory=Packed)
    changes: tuple[PaceChange, ...] = ()
    restarts: tuple[tuple[float, int], ...] = ()
    memory_minutes: PackedMemory = field(default_factory=PackedMemory)
    memory_life: PackedMemory = field(default_factory=PackedMemory)
    growths: tuple[Growth, ...] = ()

    def readings(self) -> list[Reading]:
        """Return all readings, oldest first, the finest that are kept of each time."""
        found: list[Reading] = []
        for ring in (self.seconds, self.minutes, self.life):
            until_ms = found[0].at_ms if found else float("inf")
            older = [one for one in ring.readings() if one.at_ms < until_ms]
            found = older + found
        return found

    def memory(self) -> list[MemoryReading]:
        """Return the readings of the memory, oldest first."""
        minutes = self.memory_minutes.readings()
        until_s = minutes[0].at_s if minutes else float("inf")
        return [*(one for one in self.memory_life.readings() if one.at_s < until_s), *minutes]


_READER = msgspec.json.Decoder(HistoryRecord)


def load_history(path: Path, folder: int | None = None) -> HistoryRecord:
    """Read a history file without trusting it.

    Args:
        path: The file.
        folder: The descriptor of its folder, if that is open already.

    Raises:
        FileNotFoundError: There is none.
        CaptureError: The file is not a history file.
    """
    try:
        record = load_record(_READER, path, folder, MAX_BYTES, "a step history")
        _check(record)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} is not a step history: {reason(error)}") from None
    return record


def _check(record: HistoryRecord) -> None:
    """Check the values of a record; those of its readings are checked as it is decoded.

    Raises:
        ValueError: A value cannot be.
    """
    nothing, no_memory = Packed(), PackedMemory()
    rest = dataclasses.replace(record, seconds=nothing, minutes=nothing, life=nothing)
    check_values(dataclasses.replace(rest, memory_minutes=no_memory, memory_life=no_memory))
    for packed in (record.seconds, record.minutes, record.life):
        packed.check()
    for memory in (record.memory_minutes, record.memory_life):
        memory.check()
    if any(one.before_ms <= 0 or one.after_ms <= 0 for one in record.changes):
        raise ValueError("a pace in it is not positive")


class _Rings:
    """The readings of a rank, at three resolutions.

    Args:
        former: What the former process of the rank wrote.
        own: The readings of this process. Those of the former one that are later are dropped: the
            clock was set back.
    """

    def __init__(self, former: HistoryRecord | None = None, own: Sequence[Reading] = ()) -> None:
        former = former or HistoryRecord()
        until_ms = own[0].at_ms if own else float("inf")
        seconds, minutes, life = (
            [one for one in packed.readings() if one.at_ms < until_ms]
            for packed in (former.seconds, former.minutes, former.life)
        )
        self.seconds = deque(seconds, maxlen=MAX_SECONDS)
        self.minutes = deque(minutes, maxlen=MAX_MINUTES)
        self.life = deque(life)
        self._kinds = [STEPS, STEPS]  # since the last reading in minutes, and in life
        for reading in own:
            self.add(reading)

    def add(self, reading: Reading) -> None:
        """Add a reading, which is later than all others."""
        self.seconds.append(reading)
        period_s = TEN_MINUTES_S
        while self.life and reading.at_ms - self.life[0].at_ms > MAX_LIFE * period_s * 1000:
            period_s *= 2
        for place, (ring, apart_s) in enumerate(((self.minutes, MINUTE_S), (self.life, period_s))):
            self._kinds[place] = max(self._kinds[place], reading.kind)
            apart_ms = apart_s * 1000
            if not ring or ring[-1].at_ms // apart_ms != reading.at_ms // apart_ms:
                ring.append(reading._replace(kind=self._kinds[place]))
                self._kinds[place] = STEPS
        if len(self.life) > MAX_LIFE:
            first, *others = self.life
            pairs = zip(others[::2], others[1::2], strict=False)
            kept = (b._replace(kind=max(a.kind, b.kind)) for a, b in pairs)
            self.life = deque([first, *kept, *others[len(others) // 2 * 2 :]])


def recent_pace(readings: Iterable[Reading], count: int = RECENT_BUCKETS) -> RecentPace:
    """Return the mean time of a step in each of ``count`` equal parts of the time of readings.

    The last part ends with the last step; if none has ended for long, with the last reading.
    """
    found = list(readings)
    spans = list(_spans(found))
    if not spans:
        return RecentPace()
    from_ms, to_ms = spans[0][0], spans[-1][1]
    mean_ms = (to_ms - from_ms) / sum(ended for _, _, ended in spans)
    if found[-1].at_ms - to_ms > max(STILL_S * 1e3, STILL_STEPS * mean_ms):
        to_ms = found[-1].at_ms
    length_ms = (to_ms - from_ms) / count
    took, steps = [0.0] * count, [0.0] * count
    for began_ms, ended_ms, ended in spans:
        first = int((began_ms - from_ms) / length_ms)
        last = min(count - 1, int((ended_ms - from_ms) / length_ms))
        for place in range(first, last + 1):
            edge_ms = from_ms + place * length_ms
            inside_ms = min(ended_ms, edge_ms + length_ms) - max(began_ms, edge_ms)
            took[place] += inside_ms
            steps[place] += ended * inside_ms / (ended_ms - began_ms)
    means = zip(took, steps, strict=True)
    means_ms = tuple(round(ms / ended, 3) if ended > 0 else None for ms, ended in means)
    return RecentPace(from_ms / 1e3, to_ms / 1e3, means_ms)


def _spans(readings: Iterable[Reading]) -> Iterator[tuple[int, int, int]]:
    """Yield spans from one change of the step counter to a later one, with the steps that ended."""
    before: Reading | None = None
    for one in readings:
        if before is None or one.kind == BREAK or one.step < before.step:
            before = one
        elif one.step > before.step and one.at_ms > before.at_ms:
            yield before.at_ms, one.at_ms, one.step - before.step
            before = one


def _paces_ms(readings: Iterable[Reading]) -> list[float]:
    """Return the mean time of a step in each block of readings, without windows."""
    return paces_ms((one.at_ms / 1e3, one.step, one.kind == STEPS) for one in readings)


class StepHistory:
    """Keeps the step history of this process; only the journal's thread calls it.

    Args:
        inbox: Counts the steps.
        journal: Logs the changes of the pace; the file is next to its status file.
        clock: The clock.
        memory: Reads the memory, which the file has too.

    Attributes:
        hour_ms: Median time of a step in the last hour, in milliseconds; None while unknown.
        recent_pace: The pace of the last hour.
        last_change: The last change of the pace in this process.
    """

    def __init__(self, inbox: Inbox, journal: Journal, clock: Clock, memory: MemoryWatch) -> None:
        self.hour_ms: float | None = None
        self.recent_pace = RecentPace()
        self.last_change: PaceChange | None = None
        self._inbox, self._journal, self._clock = inbox, journal, clock
        self._memory = memory
        self._began_s = clock.wall_s()
        self._offset_s = self._began_s - clock.now_s()  # setting the clock changes no pace
        self._rings, self._pace_changes = _Rings(), PaceChanges()
        self._numbering, self._first_step, self._count = -1, inbox.step, 0
        self._changes: tuple[PaceChange, ...] = ()
        self._restarts: tuple[tuple[float, int], ...] = ()
        self._path: Path | None = None
        self._trouble: str | None = ""

    def sample(self, *, is_recording: bool) -> None:
        """Take a reading; call it once a second.

        Args:
            is_recording: Whether a window is open or being saved, which slows the steps.
        """
        at_s, step = self._clock.now_s() + self._offset_s, self._inbox.step
        kind = WINDOW if is_recording else STEPS
        if self._inbox.numbering != self._numbering:
            self._numbering, kind = self._inbox.numbering, BREAK
        self._rings.add(Reading(round(at_s * 1000), step, kind))
        change = self._pace_changes.add(at_s, step, counts=kind == STEPS)
        if change:
            self._note(change, at_s)
        if not self._has_begun():
            return
        self._count += 1
        if self._count % REFRESH_S == 1:
            self._refresh()
        if self._count % MEDIAN_S == 1:
            self._compute_median()
        if self._count % WRITE_S == 1 or change or self._path is None:
            self._write(at_s)

    def end(self) -> None:
        """Write the last readings."""
        if self._has_begun():
            self._write(self._clock.now_s() + self._offset_s)

    def _has_begun(self) -> bool:
        """Return whether a step has ended; until then the rank may not be known."""
        return self._count > 0 or self._inbox.step != self._first_step

    def _note(self, change: PaceChange, at_s: float) -> None:
        self._changes = (*self._changes, change)[-MAX_EVENTS:]
        self.last_change = change
        text = f"{CHANGED}{change.in_words(at_s)}"
        text += f"; dynprof history {self._journal.layout.root} shows it"
        say = self._journal.warning if change.is_slower else self._journal.info
        say(text)
        if change.is_slower:
            self._journal.events.report("slow", text, step=self._inbox.step)

    def _refresh(self) -> None:
        seconds, minutes = self._rings.seconds, self._rings.minutes
        from_ms = seconds[-1].at_ms - HOUR_S * 1000
        recent = [one for one in minutes if one.at_ms >= from_ms]
        is_short = len(recent) < RECENT_BUCKETS  # minutes would be longer than the buckets
        self.recent_pace = recent_pace(seconds if is_short else [*recent, seconds[-1]])

    def _compute_median(self) -> None:
        paces = _paces_ms(self._rings.seconds)
        self.hour_ms = round(statistics.median(paces), 4) if paces else None

    def _write(self, at_s: float) -> None:
        """Write the file; warn once if that fails."""
        path = self._journal.status_path
        if path is None:  # the status cannot be written either, and the log says so
            return
        path = path.with_suffix(HISTORY_SUFFIX)
        if path != self._path:
            self._move(path)
        layout, rings = self._journal.layout, self._rings
        record = HistoryRecord(
            rank=layout.rank,
            role=layout.role,
            host=layout.host,
            pid=layout.pid,
            written_at=at_s,
            hour_ms=self.hour_ms,
            seconds=Packed.of(rings.seconds),
            minutes=Packed.of(rings.minutes),
            life=Packed.of(rings.life),
            changes=self._changes,
            restarts=self._restarts,
            memory_minutes=PackedMemory.of(self._memory.minutes),
            memory_life=PackedMemory.of(self._memory.life),
            growths=self._memory.status.growths,
        )
        try:
            write_atomic(path, msgspec.json.encode(record))
            self._trouble = ""
        except OSError as error:
            if error.strerror != self._trouble:  # its text has the name of a temporary file
                self._trouble = error.strerror
                self._journal.warning(f"the step history cannot be written: {reason(error)}")

    def _move(self, path: Path) -> None:
        """Continue the history of a former process of this rank.

        The path changes if the rank becomes known, or another process no longer has the name.
        """
        if self._path and "." in self._path.stem:  # the name of a duplicate
            with contextlib.suppress(OSError):
                remove(self._path)
        self._path = path
        own = [one for one in self._rings.seconds if one.at_ms >= self._began_s * 1000]
        former = self._former(path)
        self._rings = _Rings(former, own)
        self._changes = tuple(one for one in self._changes if one.at_s >= self._began_s)
        self._restarts = ()
        if former:
            self._changes = (*former.changes, *self._changes)[-MAX_EVENTS:]
            self._restarts = (*former.restarts, (self._began_s, own[0].step))[-MAX_EVENTS:]
            self._memory.continue_after(former.memory_minutes, former.memory_life)
            since_s = former.changes[-1].at_s if former.changes else 0.0
            until_s = self._began_s
            last = [one for one in self._rings.seconds if since_s <= one.at_ms / 1e3 < until_s]
            self._pace_changes.follow(_paces_ms(last))

    def _former(self, path: Path) -> HistoryRecord | None:
        try:
            former = load_history(path)
        except FileNotFoundError:
            return None
        except CaptureError as error:
            self._journal.warning(f"{error}; a new step history begins")
            return None
        pace = f", which ran at {duration(former.hour_ms)} a step" if former.hour_ms else ""
        was = f"process {former.pid} on {former.host}"
        self._journal.info(f"the step history continues that of {was}{pace}")
        return former
