"""Of several processes that poll a file, one reads it for all."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime import shared_polling
from dynprof.runtime.shared_polling import SILENT_S, SharedPolling

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW, GONE = "old", "new", ""
POLL_S = 0.5


class Machine:
    """Processes that poll one file with a common clock."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
        self.now_s = 1000.0
        self.file: str = OLD
        monkeypatch.setattr(shared_polling, "_now_s", lambda: self.now_s)
        self._root = root
        self.members = [self.another() for _ in range(processes)]
        self.seen: list[str] = [OLD] * processes

    def another(self) -> SharedPolling:
        """Return a process that begins to watch."""
        return SharedPolling("a file", self._root)

    def look(self, number: int) -> bool:
        """Let a process look; return whether it had to read the file."""
        member = self.members[number]
        if member.is_up_to_date():
            return False
        member.report_seen(self.file)
        self.seen[number] = self.file
        return True

    def look_all(self) -> int:
        """Let all processes look, and time pass; return how many had to read the file."""
        read = sum(self.look(number) for number in range(len(self.members)))
        self.now_s += POLL_S
        return read


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine with eight processes that have begun."""
    made = Machine(tmp_path, monkeypatch, 8)
    made.look_all()
    return made


def test_one_reads_for_all(machine: Machine) -> None:
    """While nothing changes, the others do not touch the file."""
    assert [machine.look_all() for _ in range(100)] == [1] * 100


def test_all_processes_read_a_change(machine: Machine) -> None:
    """All processes read a change once, within two looks, in any order."""
    for content in (NEW, GONE, OLD):
        machine.file = content
        read = machine.look_all() + machine.look_all()
        assert machine.seen == [content] * 8
        assert read <= 8 + 2
        assert machine.look_all() == 1


def test_another_process_reads_after_the_reader_falls_silent(machine: Machine) -> None:
    """The reader was killed or stopped: the file is read again after that time."""
    machine.members.pop(0)
    machine.seen.pop(0)
    machine.file = NEW
    waited_s = 0.0
    while not machine.look_all():
        waited_s += POLL_S
    assert waited_s <= SILENT_S + POLL_S
    machine.look_all()
    assert machine.seen == [NEW] * 7
    assert machine.look_all() == 1


def test_another_process_reads_at_once_after_the_reader_ends(machine: Machine) -> None:
    """The reader's notice is removed; the end of a follower leaves it."""
    machine.members.pop(5).end()
    assert machine.look_all() == 1
    machine.members.pop(0).end()
    assert machine.look_all() == 1


def test_a_reader_that_comes_back_follows(machine: Machine) -> None:
    """A suspended reader finds that another one reads, and has missed nothing."""
    back = machine.members.pop(0)
    machine.now_s += SILENT_S + 1
    machine.file = NEW
    machine.look_all()
    machine.members.append(back)
    machine.look_all()
    assert machine.seen == [NEW] * 8
    assert machine.look_all() == 1


@pytest.mark.parametrize("raw", ["", "{}", "[1, 2]", "[1, null, 2]", '["a", "b", "c"]', "[" * 900])
def test_an_invalid_notice_is_replaced(machine: Machine, tmp_path: Path, raw: str) -> None:
    """The file is then read, and a new notice replaces the invalid one."""
    (notice,) = [path for path in tmp_path.iterdir() if path.is_file()]
    notice.write_text(raw)
    assert machine.look(3)
    assert not machine.look(4)


def test_without_a_place_for_notices_each_reads_for_itself(
    machine: Machine, tmp_path: Path
) -> None:
    """A full disk costs readings, never an edit."""
    shutil.rmtree(tmp_path)
    assert [machine.look_all() for _ in range(3)] == [8, 8, 8]


def test_no_edit_is_missed_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start, end, stop and look at random; each has seen the last save."""
    for seed in range(3):
        rng = random.Random(seed)  # noqa: S311 - repeatable
        folder = tmp_path / str(seed)
        folder.mkdir()
        machine = Machine(folder, monkeypatch, 4)
        for number in range(20):
            machine.file = f"{number} {rng.randrange(9)}"
            for _ in range(rng.randrange(20)):
                machine.look(rng.randrange(4))
                machine.now_s += rng.random() * 2
            if rng.random() < 0.2:
                leaver = rng.randrange(4)
                if rng.random() < 0.5:
                    machine.members[leaver].end()
                machine.members[leaver] = machine.another()
            for _ in range(int(SILENT_S / POLL_S) + 3):
                machine.look_all()
            assert machine.seen == [machine.file] * 4, f"seed {seed}, save {number}"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_folder_that_others_may_use_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """Notices there could be another user's; each process reads for itself."""
    monkeypatch.setattr(shared_polling, "_MEMORY", tmp_path)
    folder = tmp_path / f"dynprof-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(mode)
    one, other = SharedPolling("x"), SharedPolling("x")
    for member in (one, other, one, other):
        assert not member.is_up_to_date()
        member.report_seen(OLD)
    assert not list(folder.iterdir())


def test_a_link_in_the_place_of_the_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written at its target."""
    monkeypatch.setattr(shared_polling, "_MEMORY", tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / f"dynprof-{os.geteuid()}").symlink_to(elsewhere)
    member = SharedPolling("x")
    assert not member.is_up_to_date()
    member.report_seen(OLD)
    assert not list(elsewhere.iterdir())


def test_without_a_writable_folder_each_reads_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have a read-only root and no shared memory."""

    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(shared_polling, "_MEMORY", tmp_path / "none")
    monkeypatch.setattr(tempfile, "gettempdir", none)
    member = SharedPolling("x")
    assert not member.is_up_to_date()
    member.report_seen(OLD)
    assert not member.end()
