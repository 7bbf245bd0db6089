"""The step history: readings at three resolutions, and the file that a restarted rank continues."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from dynprof.errors import CaptureError
from dynprof.journal import memory_growth
from dynprof.journal.history import (
    BREAK,
    MAX_BYTES,
    MAX_EVENTS,
    MAX_LIFE,
    MAX_MINUTES,
    MAX_SECONDS,
    STEPS,
    WINDOW,
    HistoryRecord,
    Packed,
    Reading,
    StepHistory,
    _Rings,
    load_history,
    recent_pace,
)
from dynprof.journal.memory_growth import MemoryReading, MemoryWatch, PackedMemory
from dynprof.journal.pace_changes import PaceChange
from dynprof.requests.inbox import Inbox
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.layout import Layout
from dynprof.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fake_job import Job

DAY_S = 86_400


class Notes:
    """The part of a journal that a history needs."""

    def __init__(self, root: Path, rank: int = 0) -> None:
        self.layout = Layout(root, rank, "host", 42)
        self.layout.status.parent.mkdir(exist_ok=True, parents=True)
        self.status_path: Path | None = self.layout.status
        self.infos: list[str] = []
        self.warnings: list[str] = []
        self.events = self
        self.reported: list[tuple[str, str, int]] = []

    def report(self, kind: str, text: str, *, step: int) -> None:
        """Keep an event."""
        self.reported.append((kind, text, step))

    def info(self, text: str) -> None:
        """Keep a line."""
        self.infos.append(text)

    def warning(self, text: str) -> None:
        """Keep a warning."""
        self.warnings.append(text)


class Rank:
    """A process whose steps the test counts."""

    def __init__(self, root: Path, clock: FakeClock | None = None) -> None:
        self.clock, self.inbox, self.notes = clock or FakeClock(), Inbox(bool), Notes(root)  # type: ignore[arg-type]
        self.memory = MemoryWatch(
            lambda: self.notes.layout,
            self.inbox,
            self.clock,
            self.notes.info,
            self.notes.warning,
            ErrorBoundary(StderrNotes()),
            lambda: 1000.0 + self.inbox.step,
        )
        self.history = StepHistory(self.inbox, self.notes, self.clock, self.memory)  # type: ignore[arg-type]

    def run(self, seconds: int, steps: int = 10, *, is_recording: bool = False) -> None:
        """Take some steps every second."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.inbox.step += steps
            self.history.sample(is_recording=is_recording)

    @property
    def path(self) -> Path:
        """The history file."""
        return self.notes.layout.status.with_suffix(".history")

    def read(self) -> HistoryRecord:
        """Return the file's content."""
        return load_history(self.path)


def test_seconds_of_an_hour_minutes_of_a_day_and_the_life_are_kept() -> None:
    """Two days: the oldest reading of each resolution is as old as promised."""
    rings = _Rings()
    for at_s in range(2 * DAY_S):
        rings.add(Reading(at_s * 1000, at_s * 40, STEPS))
    record = HistoryRecord(
        seconds=Packed.of(rings.seconds),
        minutes=Packed.of(rings.minutes),
        life=Packed.of(rings.life),
    )
    readings = record.readings()
    end_s = 2 * DAY_S - 1
    assert [one.at_ms for one in readings[-3600:]] == [
        s * 1000 for s in range(end_s - 3599, end_s + 1)
    ]
    day = [one for one in readings if end_s - DAY_S < one.at_ms / 1000 <= end_s - 3600]
    assert {b.at_ms - a.at_ms for a, b in itertools.pairwise(day)} == {60_000}
    assert readings[0] == Reading(0, 0, STEPS)
    assert all(one.step == one.at_ms // 1000 * 40 for one in readings)


def test_history_of_a_year_is_continued(tmp_path: Path) -> None:
    """Steps of 0.05 ms with gaps, and memory that moves by terabytes, give one of the largest."""
    rings = _Rings()
    for minute in range(365 * 1440):
        rings.add(Reading(minute * 60_000 + 1, minute * 1_200_000, WINDOW))
    for second in range(1, MAX_SECONDS):
        at_ms = 365 * DAY_S * 1000 + second * 1003
        rings.add(Reading(at_ms, 20 * at_ms, STEPS))
    assert len(rings.seconds) == MAX_SECONDS
    assert len(rings.minutes) == MAX_MINUTES
    assert MAX_LIFE / 2 <= len(rings.life) <= MAX_LIFE
    assert rings.life[0].at_ms == 1
    assert max(b.at_ms - a.at_ms for a, b in itertools.pairwise(rings.life)) <= 161 * 60_000
    memory = [
        MemoryReading(600 * n, 12_000_000 * n, *(9 * 10**k * (n % 2) for k in (6, 7, 7)))
        for n in range(memory_growth.MAX_MINUTES + memory_growth.MAX_LIFE)
    ]
    changes = (PaceChange(1_800_000_000.123456, 10**9, 22.123456789, 70.123456789),) * 100
    record = HistoryRecord(
        host="host" * 16, pid=2**22, written_at=1_800_000_000.123456, changes=changes,
        restarts=((1_800_000_000.123456, 10**9),) * 100,
        seconds=Packed.of(rings.seconds), minutes=Packed.of(rings.minutes),
        life=Packed.of(rings.life),
        memory_minutes=PackedMemory.of(memory[:memory_growth.MAX_MINUTES]),
        memory_life=PackedMemory.of(memory[memory_growth.MAX_MINUTES:]),
    )  # fmt: skip
    content = msgspec.json.encode(record)
    assert len(content) > 200_000
    rank = Rank(tmp_path)
    rank.path.write_bytes(content)
    rank.run(1)
    assert not rank.notes.warnings
    continued = rank.read()
    assert continued.restarts[-2:-1] == record.restarts[-1:]
    assert continued.memory() == record.memory()
    assert continued.life.readings()[: len(rings.life)] == [*rings.life]


def test_no_file_is_larger_than_what_is_read() -> None:
    """The largest number that is read, in each place of a file."""
    most = 10**15 - 1
    at_s = 1_800_000_000.123456

    def packed(count: int) -> Packed:
        return Packed(most, most, (most,) * count, (-most,) * count, (BREAK,) * count)

    def memory(count: int) -> PackedMemory:
        return PackedMemory(((-most,) * count,) * 5)

    history = HistoryRecord(
        most, "r" * 32, "h" * 64, most, at_s, at_s,
        packed(MAX_SECONDS), packed(MAX_MINUTES), packed(MAX_LIFE),
        (PaceChange(at_s, most, at_s, at_s),) * MAX_EVENTS, ((at_s, most),) * MAX_EVENTS,
        memory(memory_growth.MAX_MINUTES), memory(memory_growth.MAX_LIFE),
        (memory_growth.Growth("resident", at_s, most, at_s, at_s, at_s),) * 2,
    )  # fmt: skip
    assert len(msgspec.json.encode(history)) < MAX_BYTES


def test_pace_of_equal_parts_is_that_of_the_steps() -> None:
    """Steps longer than a reading, a stall, a renumbering, and a restart."""
    long = [Reading(at * 1000, at // 12, STEPS) for at in range(241)]
    assert recent_pace(long, 4).means_ms == pytest.approx((12_000,) * 4)
    renumbered = [Reading(0, 0, BREAK), Reading(1000, 10, STEPS), Reading(2000, 5000, BREAK)]
    renumbered += [Reading(3000, 5010, STEPS)]
    assert recent_pace(renumbered, 3).means_ms == (100, None, 100)
    stall = [Reading(0, 0, STEPS), Reading(1000, 10, STEPS), Reading(2000, 10, STEPS)]
    assert recent_pace([*stall, Reading(3000, 20, STEPS)], 3).means_ms == (100, 200, 200)
    assert not recent_pace(stall[:1]).means_ms


def test_a_standstill_has_no_pace_once_it_is_long() -> None:
    """It is drawn as such while it lasts; a step in progress is none, however long steps are."""
    steps = [Reading(at * 1000, at * 10, STEPS) for at in range(61)]
    hangs = [*steps, *(Reading(at * 1000, 600, STEPS) for at in range(61, 121))]
    assert recent_pace(hangs, 4).means_ms == pytest.approx((100, 100, None, None))
    assert recent_pace(hangs[:85], 4).means_ms == pytest.approx((100,) * 4)
    goes_on = [*hangs, *(Reading(at * 1000, (at - 60) * 10, STEPS) for at in range(121, 181))]
    assert recent_pace(goes_on, 3).means_ms == pytest.approx((100, 6000, 100), rel=0.02)
    long = [Reading(at * 1000, at // 40, STEPS) for at in range(279)]
    assert None not in recent_pace(long, 24).means_ms


def test_change_is_logged_once_and_written_at_once(tmp_path: Path) -> None:
    """The line has both paces, the time and the step; the status has the change."""
    rank = Rank(tmp_path)
    rank.run(600, 45)
    assert not rank.notes.warnings
    assert rank.history.last_change is None
    rank.run(120, 14)
    (line,) = rank.notes.warnings
    assert line.startswith("the pace changed: 22.2 ms a step until ")
    assert line.endswith(f" (step 27,000), 71.4 ms since; dynprof history {tmp_path} shows it")
    assert rank.read().changes[-1] == rank.history.last_change
    rank.run(700, 45)
    assert [(kind, text) for kind, text, _ in rank.notes.reported] == [("slow", line)]
    assert rank.notes.infos == [line for line in rank.notes.infos if " 22.2 ms since" in line]
    assert len(rank.notes.infos) == 1


def test_median_of_the_hour_is_without_windows(tmp_path: Path) -> None:
    """The manifest of the next window compares with it."""
    rank = Rank(tmp_path)
    assert rank.history.hour_ms is None
    rank.run(300, 50)
    rank.run(600, 10, is_recording=True)
    rank.run(61, 50)
    assert rank.history.hour_ms == pytest.approx(20, rel=0.03)
    assert not rank.notes.warnings


def test_window_is_flagged_and_has_the_median_of_the_hour_before(job: Job) -> None:
    """The manifest compares; readings during the window say so, and those after it do not."""
    for _ in range(62):
        job.step(100)
        job.session._tick()
    job.edit(active=150)
    kinds = []
    for _ in range(4):
        job.step(100)
        job.session._tick()
        kinds.append(job.session._history._rings.seconds[-1].kind)
    assert kinds == [WINDOW, STEPS, STEPS, STEPS]
    (manifest,) = job.manifests()
    assert manifest.cost.step_hour_ms == pytest.approx(10)
    status = job.session.status()
    assert status.hour_ms == manifest.cost.step_hour_ms
    assert status.recent_pace.to_s > status.recent_pace.from_s + 60
    assert status.pace_change is None


def test_steps_that_the_script_renumbers_are_unknown(job: Job) -> None:
    """``set_state()`` makes no pace of its own, and no change."""
    for count in range(200):
        if count == 100:
            job.session.set_step(10**6)
        job.step(100)
        job.session._tick()
    readings = list(job.session._history._rings.seconds)
    assert [one.kind for one in readings] == [BREAK, *[STEPS] * 99, BREAK, *[STEPS] * 99]
    assert recent_pace(readings, 3).means_ms == pytest.approx((10,) * 3, rel=0.02)
    assert "the pace changed" not in job.log()


def test_restart_at_another_pace_is_a_mark_and_a_change(tmp_path: Path) -> None:
    """The next process of the rank continues the file, and compares with it."""
    first = Rank(tmp_path)
    first.run(600, 45)
    first.history.end()
    first.clock.advance(100)
    second = Rank(tmp_path, FakeClock(7.0, first.clock.wall))
    second.run(600, 10)
    second.history.end()
    record = second.read()
    assert not first.notes.warnings
    (change,) = second.notes.warnings
    assert change.startswith("the pace changed: 22.2 ms a step until ")
    assert "(step 20), 100 ms since; " in change
    assert [one.at_s for one in record.changes] == [first.clock.wall + 2]
    (line,) = second.notes.infos
    assert line.startswith(
        "the step history continues that of process 42 on host, which ran at 22."
    )
    assert record.restarts == ((first.clock.wall, 10),)
    breaks = [one for one in record.readings() if one.kind == BREAK]
    assert [one.step for one in breaks] == [45, 10]
    assert len(record.readings()) == 1200
    assert record.hour_ms == pytest.approx(22.2, rel=0.2)


def test_restart_at_the_same_pace_is_a_mark_alone(tmp_path: Path) -> None:
    """Only the pace since the last change counts; of a short process the pace is unknown."""
    clock = FakeClock()
    first = Rank(tmp_path, clock)
    first.run(600, 45)
    first.run(120, 14)
    first.history.end()
    second = Rank(tmp_path, FakeClock(7.0, clock.wall))
    second.run(50, 14)
    second.history.end()
    third = Rank(tmp_path, FakeClock(9.0, second.clock.wall))
    third.run(600, 14)
    assert not [*second.notes.warnings, *third.notes.warnings]
    path = Rank(tmp_path / "short").path
    path.write_bytes(msgspec.json.encode(HistoryRecord(host="host", pid=41)))
    short = Rank(tmp_path / "short")
    short.run(1)
    assert short.notes.infos == ["the step history continues that of process 41 on host"]


def test_no_file_is_written_before_the_first_step(tmp_path: Path) -> None:
    """Until then the rank may be unknown, and the file would be that of rank 0."""
    rank = Rank(tmp_path)
    rank.run(100, 0)
    rank.history.end()
    assert not rank.path.exists()
    rank.notes = rank.history._journal = Notes(tmp_path, rank=3)  # type: ignore[assignment]
    rank.run(1)
    assert rank.path.name == "rank_3.history"
    assert len(rank.read().readings()) == 101


def test_file_moves_with_that_of_the_status(tmp_path: Path) -> None:
    """A second process of the rank has another name, until the first one ends."""
    rank = Rank(tmp_path)
    rank.notes.status_path = rank.notes.layout.duplicate_status
    rank.run(40)
    assert [path.name for path in rank.path.parent.iterdir()] == ["rank_0.host_42.history"]
    rank.notes.status_path = rank.notes.layout.status
    rank.run(40)
    assert [path.name for path in rank.path.parent.iterdir()] == ["rank_0.history"]


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda text: text[: len(text) // 2],
    "nothing": lambda _: b"",
    "binary": lambda _: bytes(range(256)),
    "another type": lambda text: text.replace(b'"kinds":[', b'"kinds":["x",'),
    "another kind": lambda text: text.replace(b'"kinds":[2', b'"kinds":[9'),
    "other lengths": lambda text: text.replace(b'"kinds":[2,', b'"kinds":['),
    "times set back": lambda text: text.replace(b'"more_ms":[1000', b'"more_ms":[-1000'),
    "infinite": lambda text: text.replace(b'"hour_ms":', b'"hour_ms":1e999,"x":'),
    "no pace": lambda text: text.replace(
        b'"changes":[', b'"changes":[{"at_s":1,"step":1,"before_ms":0,"after_ms":1}'
    ),
    "beyond all numbers": lambda text: text.replace(
        b'"more_ms":[1000', b'"more_ms":[9' + b"0" * 16
    ),
    "too large": lambda text: text + b" " * MAX_BYTES,
    "deep": lambda _: b'{"seconds":' * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_file_is_reported_and_replaced(tmp_path: Path, damage: str) -> None:
    """One warning, without the file's content; a new history begins."""
    first = Rank(tmp_path)
    first.run(100)
    first.path.write_bytes(DAMAGED[damage](first.path.read_bytes()))
    with pytest.raises(CaptureError):
        load_history(first.path)
    second = Rank(tmp_path)
    second.run(100)
    (line,) = second.notes.warnings
    assert line.startswith(f"{second.path} is not a step history: ")
    assert line.endswith("; a new step history begins")
    assert len(line) < 300
    assert not second.read().restarts


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_neither_read_nor_followed(tmp_path: Path, kind: str) -> None:
    """Another user may have put it there. A folder cannot be replaced, and the log says so once."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    rank = Rank(tmp_path)
    if kind == "link":
        rank.path.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(rank.path)
    else:
        rank.path.mkdir()
    rank.run(100)
    assert "a new step history begins" in rank.notes.warnings[0]
    assert secret.read_text() == "secret"
    if kind == "folder":
        assert len(rank.notes.warnings) == 2
        assert "the step history cannot be written: " in rank.notes.warnings[1]
    else:
        assert len(rank.read().readings()) > 60


def test_full_disk_is_reported_once_and_the_next_write_is_tried(tmp_path: Path) -> None:
    """A folder that is gone stands for it; the history stays in memory."""
    rank = Rank(tmp_path)
    rank.run(10)
    rank.path.unlink()
    rank.path.parent.rmdir()
    rank.run(100)
    assert len(rank.notes.warnings) == 1
    rank.path.parent.mkdir()
    rank.run(31)
    assert len(rank.read().readings()) > 110


def test_readings_later_than_the_process_are_dropped(tmp_path: Path) -> None:
    """The clock was set back by an hour between two processes."""
    first = Rank(tmp_path)
    first.run(100)
    first.history.end()
    second = Rank(tmp_path, FakeClock(0.0, first.clock.wall - 3600))
    second.run(50)
    second.history.end()
    readings = second.read().readings()
    assert len(readings) == 50
    assert readings == sorted(readings)


def test_clock_that_is_set_changes_no_pace(tmp_path: Path) -> None:
    """Times are those of the monotonic clock since the process began."""
    rank = Rank(tmp_path)
    rank.run(300)
    rank.clock.wall -= DAY_S
    rank.run(300)
    rank.history.end()
    at_ms = [one.at_ms for one in rank.read().readings()]
    assert {b - a for a, b in itertools.pairwise(at_ms)} == {1000}
    assert not rank.notes.warnings


def test_file_of_a_newer_version_is_read(tmp_path: Path) -> None:
    """Fields that this version does not know are ignored, and missing ones have a default."""
    path = tmp_path / "rank_0.history"
    newer = {**dataclasses.asdict(HistoryRecord(rank=3)), "more": 1}
    del newer["restarts"]
    path.write_text(json.dumps(newer))
    assert load_history(path) == HistoryRecord(rank=3)


def test_memory_of_a_former_process_is_continued(tmp_path: Path) -> None:
    """The file has the least of each minute, before and after the restart, in the order of time."""
    clock = FakeClock()
    for _ in range(2):
        rank = Rank(tmp_path, clock)
        for _ in range(120):
            rank.run(1, steps=1)
            rank.memory.check()
        rank.history.end()
    readings = rank.read().memory()
    assert [one.at_s for one in readings] == sorted(one.at_s for one in readings)
    assert readings[-1].at_s - readings[0].at_s > 180
    assert [one.resident_mb < 1130 for one in readings] == [True] * len(readings)
