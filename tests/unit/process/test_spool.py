"""Lines of several processes reach the one that takes them, or whoever writes them is told."""

from __future__ import annotations

import fcntl
import os
import random
import threading
from pathlib import Path

from dynprof.process.spool import MOST_BYTES, Spool


def test_what_was_put_is_taken_once(tmp_path: Path) -> None:
    """In the order in which it came, whoever takes."""
    one, other = Spool(tmp_path / "lines"), Spool(tmp_path / "lines")
    assert one.take() == []
    assert one.put("first")
    assert other.put("second {}")
    assert other.take() == ["first", "second {}"]
    assert one.take() == other.take() == []


def test_a_line_ends_where_it_was_put_and_nowhere_else(tmp_path: Path) -> None:
    """Names of folders may have in them what ends a line of text."""
    spool = Spool(tmp_path / "lines")
    lines = [f"a{mark}b" for mark in "\u2028\u2029\x85\x0b\x0c\x1c\x1e\r"]
    assert all(map(spool.put, lines))
    assert spool.take() == lines


def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    """As the machine's memory is full: who wrote it is told so, the next one has room again."""
    spool = Spool(tmp_path / "lines")
    (tmp_path / "lines").write_bytes(b"5 a part")
    assert spool.put("6 whole")
    assert spool.take() == ["5 a part", "6 whole"]


def test_nothing_is_lost_or_taken_twice_between_threads(tmp_path: Path) -> None:
    """Eight write and two take at once: what was put and what was refused make the whole."""
    put: list[str] = []
    taken: list[str] = []
    lengths = random.Random(1).choices(range(1, 400), k=50)  # noqa: S311 - repeatable
    written = threading.Event()

    def write(number: int) -> None:
        spool = Spool(tmp_path / "lines")
        lines = [f"{number}-{count}-" + "x" * length for count, length in enumerate(lengths)]
        put.extend(line for line in lines if spool.put(line))

    def take() -> None:
        spool = Spool(tmp_path / "lines")
        while not written.is_set():
            taken.extend(spool.take())

    takers = [threading.Thread(target=take) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in takers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    written.set()
    for thread in takers:
        thread.join()
    taken += Spool(tmp_path / "lines").take()
    assert put
    assert sorted(taken) == sorted(put)


def test_a_lock_that_is_held_costs_the_line(tmp_path: Path) -> None:
    """A stopped process may hold it: nobody waits for that."""
    spool = Spool(tmp_path / "lines")
    assert spool.put("first")
    holder = os.open(tmp_path / "lines", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert not spool.put("second")
    assert spool.take() == []
    os.close(holder)
    assert spool.take() == ["first"]


def test_what_stands_in_its_place_is_not_written(tmp_path: Path) -> None:
    """A link, a pipe, a folder, or no folder at all; and it takes no more than it should."""
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "none/lines"):
        spool = Spool(tmp_path / name)
        assert not spool.put("line"), name
        assert spool.take() == [], name
        spool.remove()
    assert not target.read_bytes()
    assert not Spool(None).put("line")
    full = Spool(tmp_path / "full")
    assert full.put("x" * (MOST_BYTES - 10))
    assert not full.put("x" * 10)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    """Whatever comes of it."""
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    spool = Spool(tmp_path / "lines")
    for _ in range(10):
        spool.put("line")
        spool.take()
        Spool(tmp_path).put("line")
    assert len(list(descriptors.iterdir())) == before
