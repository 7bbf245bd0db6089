"""The maintenance log and the status file."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dynprof.cli.log import _Tail
from dynprof.errors import CaptureError
from dynprof.files.layout import Layout, host_name, pid_namespace
from dynprof.journal.edit_outcomes import MOST, EditOutcomes
from dynprof.journal.journal import Journal, printable
from dynprof.journal.status import Status, load_status
from dynprof.requests.capabilities import Capabilities
from dynprof.windows.step_times import StepTimes
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Office:
    """A journal of a process whose state the test sets."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root, 3, "host", 42)
        self.state = "idle"
        self.ticked = threading.Event()
        self.journal = Journal(self.layout, self.status, self.ticked.set)

    def status(self) -> Status:
        """Return the state of now."""
        return Status(
            self.state,
            heartbeat=time.time(),
            profilers=(Capabilities("torch", ("CPU",)),),
            rank=self.layout.rank,
            host=self.layout.host,
            pid=self.layout.pid,
        )


def test_a_line_is_readable_at_night(tmp_path: Path) -> None:
    """Time, level, rank and words; further lines are indented; no control code gets through."""
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
    """What is written is what ``load_status`` returns; the last one says how it ended."""
    office = Office(tmp_path)
    office.journal.start()
    assert office.ticked.wait(patience_s())
    office.state = "stopped"
    office.journal.stop()
    status = load_status(office.layout.status)
    assert (status.state, status.rank) == ("stopped", 3)
    assert status.profilers == (Capabilities("torch", ("CPU",)),)
    assert [p.name for p in office.layout.status.parent.iterdir()] == ["rank_3.json"]


def test_files_are_private_to_user_and_group(tmp_path: Path) -> None:
    """Others may neither read nor write what lies there, whatever the umask allows."""
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
    """A log that somebody deletes is written anew from the next line on."""
    office = Office(tmp_path)
    office.journal.start()
    office.journal.info("one")
    while not office.layout.log.exists():
        office.ticked.wait(0.01)
    office.layout.log.unlink()
    office.journal.info("two")
    office.journal.stop()
    assert "two" in office.layout.log.read_text()


def test_a_log_that_has_a_second_name_is_given_up_for_a_new_one(tmp_path: Path) -> None:
    """A file of the job's user's own may lie there under the log's name."""
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
    """Nothing is written through it, though it was checked before."""
    office, elsewhere = Office(tmp_path / "root"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "root").mkdir()

    def swap(_: Layout, path: Path) -> None:
        if path == office.layout.log.parent and not path.is_symlink():
            path.rmdir() if path.exists() else None
            path.symlink_to(elsewhere)

    monkeypatch.setattr(Layout, "make_dir", swap)
    office.journal.start()
    office.journal.info("here")
    office.journal.stop()
    assert list(elsewhere.glob("*.log")) == []


def test_a_directory_in_the_place_of_an_old_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log begins anew, and the newest lines are there."""
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
    """Lines that cannot be written are dropped; the status goes on."""
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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"state": 1, "profilers": [1]}',
        '{"state": "idle", "heartbeat": "x"}',
        "[" * 100_000,
        "x" * (2 << 20),
    ],
    ids=["empty", "list", "half", "types", "text", "deep", "large"],
)
def test_what_is_no_status_says_so(tmp_path: Path, text: str) -> None:
    """Rubbish in the place of a status is an error of ours."""
    (tmp_path / "rank_0.json").write_text(text)
    with pytest.raises(CaptureError, match="not a status file"):
        load_status(tmp_path / "rank_0.json")


def test_a_status_is_read_from_a_file_only(tmp_path: Path) -> None:
    """Neither a link to an endless device nor a pipe without a writer holds anybody up."""
    (tmp_path / "link.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("link.json", "pipe.json"):
        with pytest.raises(CaptureError, match="not a status file"):
            load_status(tmp_path / name)


def test_the_journal_outlives_a_status_that_fails(tmp_path: Path) -> None:
    """What the guard catches costs a status, not the log."""
    office, caught = Office(tmp_path), threading.Event()

    def guard(_: str, action: Callable[[], object]) -> None:
        try:
            action()
        except ZeroDivisionError:
            caught.set()

    office.journal = Journal(office.layout, lambda: 1 / 0, office.ticked.set)  # type: ignore[arg-type,return-value]
    office.journal.guard = guard
    office.journal.start()
    assert caught.wait(patience_s())
    office.journal.info("still here")
    office.journal.stop()
    assert "still here" in office.layout.log.read_text()


def test_open_requests_are_remembered_longest() -> None:
    """Newer edits push out what has ended, not what is still on its way."""
    outcomes = EditOutcomes()
    outcomes.enter(1, "", 0.0)
    for number in range(2, 40):
        outcomes.enter(number, "", 0.0)
        outcomes.note(number, "refused")
    assert len(outcomes.answers) == MOST
    assert outcomes.answers[0].number == 1


def test_the_rest_of_a_rotated_log_is_read(tmp_path: Path) -> None:
    """Who follows a log misses nothing when it is put aside."""
    path, line = tmp_path / "dp_x.log", "2026-01-31 03:00:00.123 INFO    rank 0  "
    path.write_text(f"{line}one\n")
    tail = _Tail(path)
    assert list(tail.records()) == [f"{line}one"]
    with path.open("a") as file:
        file.write(f"{line}two\n")
    path.rename(f"{path}.1")
    path.write_text(f"{line}three\n")
    assert list(tail.records()) == [f"{line}two", f"{line}three"]


def test_a_status_of_a_newer_version_is_read(tmp_path: Path) -> None:
    """Fields that this version does not know are passed over."""
    (tmp_path / "rank_0.json").write_text(json.dumps({"state": "idle", "mood": "good"}))
    assert load_status(tmp_path / "rank_0.json").state == "idle"


def test_liveness() -> None:
    """A process is live while its heartbeat is young and it has not stopped."""
    assert Status("idle", heartbeat=100).is_live(110)
    assert not Status("idle", heartbeat=100).is_live(116)
    assert not Status("stopped", heartbeat=100).is_live(101)


def test_a_process_that_is_there_is_not_dead() -> None:
    """On this machine it is looked for, however old its status is; a number may be reused."""
    now_s = time.time()
    mine = Status("idle", pid=1, host=host_name(), pid_namespace=pid_namespace(), heartbeat=now_s)
    assert mine.health(now_s) == "alive"
    assert replace(mine, heartbeat=now_s - 40).health(now_s) == "stuck"
    assert replace(mine, heartbeat=1.0).health(now_s) == "dead"  # the process is younger
    assert replace(mine, pid=2**22 + 1).health(now_s) == "dead"
    assert replace(mine, heartbeat=now_s - 40, host="node9").health(now_s) == "dead"


def test_the_first_step_may_take_long() -> None:
    """Before it has ended a process is starting; only half an hour later it is stuck."""
    here = Status("idle", pid=1, host="node9", heartbeat=100.0, still_s=125.0)
    assert replace(here, longest_s=None).health(100) == "starting"
    assert replace(here, longest_s=None, still_s=1801.0).health(100) == "stuck"
    assert replace(here, longest_s=None).health(116) == "dead"  # unheard of, elsewhere
    assert here.health(100) == "stuck"


def test_a_step_may_take_as_long_as_one_did() -> None:
    """Half as long again as the longest, up to half an hour: a second compilation is not stuck."""
    here = Status("idle", host="node9", heartbeat=100.0, longest_s=125.0)
    assert replace(here, still_s=180.0).health(100) == "alive"
    assert replace(here, still_s=190.0).health(100) == "stuck"
    assert replace(here, longest_s=1e6, still_s=1801.0).health(100) == "stuck"


def test_the_longest_step_is_seen_from_outside() -> None:
    """None before the counter moves; a number that is only set is no move."""
    pace = StepTimes()
    pace.sample(10, 0)
    pace.renumber(500)
    pace.sample(70, 500)
    assert (pace.longest_s(71, 500), pace.still_s(71, 500)) == (None, 61)
    assert pace.longest_s(135, 501) == 125  # as in the step time, what is not sampled counts
    pace.sample(135, 501)
    pace.sample(136, 600)
    assert pace.longest_s(137, 600) == 125


def test_pace_is_the_mean_of_the_samples() -> None:
    """Step times come from counter and clock; a counter set back starts anew."""
    pace = StepTimes()
    assert pace.mean_ms(0, 0) is None
    pace.sample(10, 100)
    assert pace.mean_ms(11, 100) is None
    pace.sample(11, 150)
    assert pace.mean_ms(12, 200) == pytest.approx(20)
    pace.sample(12, 5)
    assert pace.mean_ms(13, 15) == pytest.approx(100)


def test_printable_keeps_words_of_all_languages() -> None:
    """Only what is not printable is escaped."""
    assert printable("größe 步 \t\x00") == "größe 步 \\t\\x00"
