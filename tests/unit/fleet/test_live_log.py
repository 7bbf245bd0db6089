"""The newest records of a job's log, for all browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.fleet import live_log
from dynprof.fleet.live_log import MAX_JOBS, MAX_RECORD, MAX_RECORDS, LiveLog, LiveLogs

if TYPE_CHECKING:
    from pathlib import Path


def line(second: int, rank: int, text: str) -> str:
    """Return a line of a log."""
    return f"2026-01-31 03:00:{second:02}.123 INFO    rank {rank}  {text}\n"


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the logs at each call."""
    monkeypatch.setattr(live_log, "POLL_S", 0.0)


def test_records_of_all_ranks_are_merged_and_numbered(tmp_path: Path) -> None:
    """A browser that has some gets the later ones, also of a log that begins later."""
    (tmp_path / "log").mkdir()
    first, second = (tmp_path / "log" / f"dp_x_{rank}_rank_{rank}.log" for rank in range(2))
    first.write_text(line(1, 0, "one") + line(3, 0, "three"))
    log = LiveLog(tmp_path)
    found = log.after(0)
    assert [number for number, _ in found] == [1, 2]
    second.write_text(line(4, 1, "four"))
    assert [text.rstrip().rpartition(" ")[2] for _, text in log.after(1)] == ["three", "four"]
    assert log.after(3) == []


def test_long_logs_and_records_are_bounded(tmp_path: Path) -> None:
    """The newest records stay, and each is cut."""
    (tmp_path / "log").mkdir()
    path = tmp_path / "log" / "dp_x_0_rank_0.log"
    path.write_text("".join(line(1, 0, f"n{number}") for number in range(3 * MAX_RECORDS)))
    log = LiveLog(tmp_path)
    found = log.after(0)
    assert len(found) == MAX_RECORDS
    assert found[-1][1].rstrip().endswith(f"n{3 * MAX_RECORDS - 1}")
    with path.open("a") as file:
        file.write(line(2, 0, "x" * 3 * MAX_RECORD))
    assert len(log.after(found[-1][0])[0][1]) == MAX_RECORD


def test_logs_of_few_jobs_are_kept(tmp_path: Path) -> None:
    """The one that was looked at last stays the same object."""
    logs = LiveLogs()
    first = logs.of(tmp_path / "0")
    for number in range(1, MAX_JOBS):
        logs.of(tmp_path / str(number))
    assert logs.of(tmp_path / "0") is first
    logs.of(tmp_path / "new")
    assert logs.of(tmp_path / "0") is first


def test_a_record_is_named_for_its_own_log_only(tmp_path: Path) -> None:
    """The numbers of a server that was restarted mean nothing to the new one."""
    log, later = LiveLog(tmp_path), LiveLog(tmp_path)
    assert log.number_of(log.id_of(7)) == 7
    assert later.number_of(log.id_of(7)) == 0
    own = log.id_of(7).removesuffix("7")
    for wrong in ("", "7", f"{own}", f"{own}-7", f"{own}\u00b2", own + "9" * 5000):
        assert log.number_of(wrong) == 0
