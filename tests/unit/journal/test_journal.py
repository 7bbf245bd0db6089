"""The log and the status file."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import threading
import time
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING, Any

from dynprof.journal.journal import Journal, _to_next_tick_s, printable
from dynprof.journal.status import Status, load_status
from dynprof.requests.capabilities import Capabilities
from dynprof.runtime.layout import Layout
from tests.pace import patience_s

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Office:
    """The journal of a process whose state the test sets."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root, 3, "host", 42)
        self.state = "idle"
        self.step_ms: float | None = None
        self.behind_s = 0.0
        self.ticked = threading.Event()
        self.journal = Journal(self.layout, self.status, self.ticked.set)

    def status(self) -> Status:
        """Return the present state."""
        return Status(
            self.state,
            step_ms=self.step_ms,
            heartbeat=time.time() - self.behind_s,
            profilers=(Capabilities("torch", ("CPU",)),),
            rank=self.layout.rank,
            host=self.layout.host,
            pid=self.layout.pid,
        )


def test_a_line_is_readable_at_night(tmp_path: Path) -> None:
    """A line has time, level, rank and text; more lines are indented, control codes escaped."""
    office = Office(tmp_path)
    office.journal.start()
    office.journal.info("first\nsecond \x1b[2Jline")
    office.journal.warning("careful")
    office.journal.stop()
    lines = office.layout.log.read_text().splitlines()
    assert lines[0].endswith(" INFO    rank 3  first")
    assert lines[1] == "    second \\x1b[2Jline"
    assert lines[2].endswith(" WARNING rank 3  careful")
    time.strptime(lines[0][:19], "%Y-%m-%d %H:%M:%S")


def test_the_status_is_whole_and_comes_back(tmp_path: Path) -> None:
    """``load_status`` returns what was written; the last status says how the process ended."""
    office = Office(tmp_path)
    office.journal.start()
    assert office.ticked.wait(patience_s())
    office.state = "stopped"
    office.journal.stop()
    status = load_status(office.layout.status)
    assert (status.state, status.rank) == ("stopped", 3)
    assert status.profilers == (Capabilities("torch", ("CPU",)),)
    assert [p.name for p in office.layout.status.parent.iterdir()] == ["rank_3.json"]


def test_the_first_step_time_does_not_wait_for_the_heartbeat(tmp_path: Path) -> None:
    """The step time is visible right after a start or a save."""
    office = Office(tmp_path)
    office.journal.start()
    while not office.layout.status.exists():
        assert office.ticked.wait(patience_s())
    office.step_ms = 12.5
    office.journal.stop()
    assert load_status(office.layout.status).step_ms == 12.5


def test_a_status_is_written_after_the_clock_is_set_back(tmp_path: Path) -> None:
    """The next heartbeat is not a day late."""
    office = Office(tmp_path)
    office.journal.start()
    while not office.layout.status.exists():
        assert office.ticked.wait(patience_s())
    before = load_status(office.layout.status)
    office.behind_s = 86_400
    office.journal.stop()
    assert load_status(office.layout.status).heartbeat < before.heartbeat - 86_000


def test_files_are_private_to_user_and_group(tmp_path: Path) -> None:
    """Others may neither read nor write these files, whatever the umask."""
    before = os.umask(0)
    try:
        office = Office(tmp_path / "new")
        (tmp_path / "new").mkdir()
        office.journal.start()
        office.journal.info("a line")
        office.journal.stop()
    finally:
        os.umask(before)
    for path in (tmp_path / "new").rglob("*"):
        assert path.stat().st_mode & 0o007 == 0, path


def test_a_removed_log_comes_back(tmp_path: Path) -> None:
    """A log that is deleted is created again at the next line."""
    office = Office(tmp_path)
    office.journal.start()
    office.journal.info("one")
    while not office.layout.log.exists():
        office.ticked.wait(0.01)
    office.layout.log.unlink()
    office.journal.info("two")
    office.journal.stop()
    assert "two" in office.layout.log.read_text()


def test_a_log_that_was_moved_away(tmp_path: Path) -> None:
    """If another file has its name, as after a copy of the directory, lines go to that file."""
    office = Office(tmp_path)
    office.journal.start()
    office.journal.info("one")
    while not office.layout.log.exists():
        office.ticked.wait(0.01)
    moved = office.layout.log.rename(tmp_path / "moved")
    office.layout.log.touch()
    office.journal.info("two")
    office.journal.stop()
    assert "two" not in moved.read_text()
    assert "two" in office.layout.log.read_text()


def test_a_log_with_a_second_name_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    """The file with the log's name may be another one of the job's user."""
    office = Office(tmp_path)
    office.layout.log.parent.mkdir()
    own = tmp_path / "own"
    own.write_text("mine\n")
    office.layout.log.hardlink_to(own)
    office.journal.start()
    office.journal.info("here")
    office.journal.stop()
    assert own.read_text() == "mine\n"
    assert office.layout.log.read_text().endswith("here\n")


def test_a_log_folder_that_becomes_a_link_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written through it if other users may write there, despite an earlier check."""
    office, elsewhere = Office(tmp_path / "root"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o777)

    def swap(_: Layout, path: Path) -> None:
        if path == office.layout.log.parent and not path.is_symlink():
            path.rmdir() if path.exists() else None
            path.symlink_to(elsewhere)

    monkeypatch.setattr(Layout, "make_dir", swap)
    office.journal.start()
    office.journal.info("here")
    office.journal.stop()
    assert list(elsewhere.glob("*.log")) == []


def test_the_log_has_at_most_three_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for any number of lines; the newest lines are there."""
    monkeypatch.setattr("dynprof.journal.journal.LOG_BYTES", 300)
    office = Office(tmp_path)
    office.journal.start()
    for number in range(40):
        office.journal.info(f"line {number}")
    office.journal.stop()
    assert len(list(office.layout.log.parent.iterdir())) == 3
    assert "line 39" in office.layout.log.read_text()


def test_a_directory_in_the_place_of_an_old_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log starts again, and the newest lines are there."""
    monkeypatch.setattr("dynprof.journal.journal.LOG_BYTES", 300)
    office = Office(tmp_path)
    office.layout.log.parent.mkdir()
    for number in (1, 2, 3):
        office.layout.log.with_name(f"{office.layout.log.name}.{number}").mkdir()
    office.journal.start()
    for number in range(20):
        office.journal.info(f"line {number}")
    office.journal.stop()
    assert "line 19" in office.layout.log.read_text()
    assert office.layout.log.stat().st_size <= 300


def test_a_log_directory_replaced_by_a_file_does_not_end_the_journal(tmp_path: Path) -> None:
    """Lines that cannot be written are dropped; the status continues."""
    office = Office(tmp_path)
    office.journal.start()
    office.journal.info("one")
    while not office.layout.log.exists():
        office.ticked.wait(0.01)
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "log").touch()
    office.journal.info("two")
    office.state = "stopped"
    office.journal.stop()
    assert load_status(office.layout.status).state == "stopped"


def test_the_journal_outlives_a_status_that_fails(tmp_path: Path) -> None:
    """A status that cannot be written is logged once, and the log continues."""
    office = Office(tmp_path)
    office.journal = Journal(office.layout, lambda: 1 / 0, office.ticked.set)  # type: ignore[arg-type,return-value]
    office.journal.start()
    assert office.ticked.wait(patience_s())
    office.journal.info("still here")
    office.journal.stop()
    log = office.layout.log.read_text()
    assert log.count("writing the status failed: ZeroDivisionError") == 1
    assert "still here" in log


def test_printable_keeps_words_of_all_languages() -> None:
    """Only unprintable characters are escaped."""
    assert printable("größe 步 \t\x00") == "größe 步 \\t\\x00"


class _NewQueue(queue.SimpleQueue[Any]):
    """A queue that notes whether a thread waits for it before it was seen empty."""

    was_seen_empty = False
    was_waited_at_first = False

    def get_nowait(self) -> Any:
        self.was_seen_empty = True
        return super().get_nowait()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.was_waited_at_first |= not self.was_seen_empty
        return super().get(block, timeout)


def test_a_log_that_cannot_be_closed_ends_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full or read-only disk, buffered lines may fail to be written at the close."""

    def close(_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(RotatingFileHandler, "close", close)
    office = Office(tmp_path)
    office.journal.start()
    office.journal.stop()
    assert raised == []


def test_ticks_come_at_whole_seconds() -> None:
    """After a late tick the next one is at a whole second, and never two at once."""
    times = (5.0, 5.01, 5.4, 5.9999)
    assert [round(wall_s + _to_next_tick_s(wall_s), 6) for wall_s in times] == [6, 6, 6, 7]
