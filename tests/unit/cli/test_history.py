"""What the history, the status and the log show of the pace of several ranks."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dynprof.cli.history import (
    MAX_LINES,
    _events,
    _still_texts,
    memory_lines,
    pace_lines,
    sparkline,
)
from dynprof.journal.history import HistoryRecord
from dynprof.journal.log_reading import SharedChanges
from dynprof.journal.memory_growth import MemoryStatus
from dynprof.journal.pace_changes import PaceChange, RecentPace
from dynprof.journal.status import Status
from dynprof.runtime.layout import host_name, pid_namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW_S = 1_800_000_000.0
SLOWER = PaceChange(NOW_S - 100, 600, 22.0, 70.0)
HOUR = RecentPace(NOW_S - 3600, NOW_S, (22.0,) * 20 + (70.0,) * 4)


def rank(number: int, change: PaceChange | None = None, pace: RecentPace = HOUR) -> Status:
    """Return the status of a rank."""
    return Status("idle", rank=number, heartbeat=NOW_S, recent_pace=pace, pace_change=change)


def shifted(change: PaceChange, seconds: float) -> PaceChange:
    """Return a change as another rank dates it."""
    return PaceChange(
        change.at_s + seconds, change.step + 3, change.before_ms + 0.2, change.after_ms
    )


def record(number: int, text: str, at: str = "01:01:40", role: str = "") -> str:
    """Return a record of the log of a rank."""
    return f"2026-01-31 {at}.000 WARNING {role}rank {number}  {text}"


def line(until: str = "01:00:50", before: str = "22 ms", after: str = "70.1 ms") -> str:
    """Return the text of a change in the log."""
    words = f"the pace changed: {before} a step until {until} (step 1,600), {after} since"
    return f"{words}; dynprof history /x shows it"


@pytest.mark.parametrize(
    ("means", "bars"),
    [
        ((22.0, 22.1, 22.0, 70.0), "▁▁▁█ 22 ms to 70 ms"),
        ((22.0, 22.4, 22.0, 22.2), "▁▁▁▁ 22 ms to 22.4 ms"),
        ((22.0, None, 22.0), "▁·▁ 22 ms"),
        ((22.0, 9000.0, 22.0, 33.0), "▁█▁▂ 22 ms to 9 s"),
        ((), ""),
        ((None, None), ""),
        ((-5.0, 0.0, 22.0), "··▁ 22 ms"),
        ((22.0,) * 10**5, "▁" * 24 + " 22 ms"),
    ],
)
def test_bars_show_changes_and_no_noise(means: tuple[float | None, ...], bars: str) -> None:
    """A long evaluation hides no change; a difference of a percent has no bar of its own.

    A file that another user wrote may have anything.
    """
    assert sparkline(RecentPace(0, 1, means)) == bars


def test_ranks_that_change_together_share_a_line_of_the_status() -> None:
    """A rank that changes alone has a line of its own, and so have those that did not change."""
    alone = PaceChange(NOW_S - 1000, 400, 22.0, 44.0)
    found = [rank(0, SLOWER), rank(1, shifted(SLOWER, 2)), rank(2, alone), rank(3), rank(4)]
    lines = pace_lines(found)
    assert [text.partition(":")[0] for text in lines] == ["ranks 0 to 1", "rank 2", "ranks 3 to 4"]
    assert lines[0].endswith(f"; {SLOWER.in_words(NOW_S)}")
    assert "pace of the last hour " in lines[0]
    assert lines[2].endswith(" 22 ms to 70 ms")


def test_another_pace_than_since_the_last_change_is_named() -> None:
    """A change back is found after a minute; until then the line names both."""
    for now_ms, said in ((69.0, False), (100.0, False), (22.0, True), (120.0, True)):
        (text,) = pace_lines([replace(rank(0, SLOWER), step_ms=now_ms)])
        assert text.endswith(f", 70 ms since; {now_ms:g} ms in the last seconds") == said


def test_a_rank_that_ends_no_step_is_named() -> None:
    """After half a minute; a silent one says no more than that."""
    now_s = time.time()
    here = Status("idle", step=300, host=host_name(), pid=1, pid_namespace=pid_namespace())
    hangs = replace(here, heartbeat=now_s, since_last_step_s=75.0)
    assert list(_still_texts([hangs])) == ["rank 0: no step has ended for 75 s (step 300)"]
    silent = replace(hangs, heartbeat=now_s - 60, since_last_step_s=1.0)
    assert list(_still_texts([silent])) == ["rank 0: it has not been heard of for 61 s (step 300)"]
    quick, dead = replace(hangs, since_last_step_s=20.0), replace(hangs, pid=2**22 + 1)
    assert not list(_still_texts([quick, dead, replace(hangs, state="stopped")]))


def test_lines_of_many_ranks_that_step_apart_are_few() -> None:
    """The rest is counted."""
    found = [rank(n, PaceChange(NOW_S - 1000 * n, 400, 22.0, 44.0)) for n in range(1, 100)]
    lines = pace_lines(found)
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "95 more ranks with a pace of its own; see dynprof history"


def test_young_job_has_no_line() -> None:
    """Less than a minute shows noise only."""
    assert not pace_lines(
        [rank(0, pace=RecentPace(NOW_S - 50, NOW_S, (22.0,) * 24)), Status("idle")]
    )


def folded(*batches: Sequence[str]) -> list[str]:
    """Return what is printed of records that arrive in batches."""
    shared = SharedChanges()
    return [text for batch in batches for text in shared.fold(batch)]


def test_change_of_several_ranks_is_printed_once() -> None:
    """The record that stays names the others; all other records stay."""
    found = folded(
        [
            record(0, line()),
            record(0, "something else"),
            record(1, line("01:00:51", "22.2 ms", "69.9 ms")),
            record(2, line("01:00:49")),
        ]
    )
    assert found == [record(0, f"{line()}; ranks 1 to 2 too"), record(0, "something else")]


def test_change_that_another_rank_logs_later_is_not_printed_again() -> None:
    """``log --follow`` prints what it has; the next change is printed."""
    back = line("01:05:00", "70.1 ms", "22 ms")
    found = folded(
        [record(0, line())],
        [record(1, line())],
        [record(1, back, "01:06:00")],
        [record(0, back, "01:06:01")],
    )
    assert found == [record(0, line()), record(1, back, "01:06:00")]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(record(1, line("00:40:00")), id="another time"),
        pytest.param(record(1, line("01:00:50", "70 ms", "22 ms")), id="the other direction"),
        pytest.param(record(1, line(), role="rollout "), id="another role"),
        pytest.param(record(1, line().replace("01:00:50", "99:99:99")), id="no time"),
        pytest.param(record(1, line("9999-99-99 00:00:00")), id="no date"),
        pytest.param(record(0, line("01:01:30", "1.2 s", "12 s"), "01:02:00"), id="the same rank"),
    ],
)
def test_other_record_is_printed(other: str) -> None:
    """Only the same change of another rank is left out."""
    found = folded([record(0, line()), other])
    assert len(found) == 2
    assert found[1] == other


def test_change_before_midnight_is_that_of_the_day_before() -> None:
    """A line has the time of day alone; the record's own time is later."""
    first = record(0, line("23:59:30"), "00:00:20")
    assert len(folded([first, record(1, line("23:59:31"), "00:00:22")])) == 1
    assert len(folded([first, record(1, line("2026-01-30 23:59:31"), "00:00:22")])) == 1


def test_events_are_sorted_and_shared() -> None:
    """Changes of several ranks in one line; restarts with their rank."""
    found = [
        HistoryRecord(rank=0, changes=(SLOWER,), restarts=((NOW_S - 500, 0),)),
        HistoryRecord(rank=1, changes=(shifted(SLOWER, 1),)),
        HistoryRecord(rank=0, role="rollout", changes=(shifted(SLOWER, 1),)),
    ]
    texts = [re.sub(r"^.{19}  ", "", text) for text in _events(found)]
    assert texts == [
        "step 0, rank 0: a new session continues",
        "step 600, ranks 0 to 1: 22 ms a step before, 70 ms since, 3.2 times slower",
        "step 603, rollout rank 0: 22.2 ms a step before, 70 ms since, 3.2 times slower",
    ]
    assert _events(found)[0].startswith(time.strftime("%Y-%m-%d ", time.localtime(NOW_S)))


@pytest.mark.parametrize(("other_mb", "shown"), [(50, "50"), (55, "50 to 55")])
def test_equal_memory_of_ranks_is_shown_once(other_mb: int, shown: str) -> None:
    """A range from a value to itself says nothing."""
    ranks = [
        replace(rank(number), memory=MemoryStatus(resident_mb=mb))
        for number, mb in enumerate((50, other_mb))
    ]
    assert memory_lines(ranks) == [f"ranks 0 to 1: {shown} MB resident"]
