"""Recognition of saves from readings, without a file or a clock."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from dynprof.config import Source
from dynprof.errors import Problem
from dynprof.requests.edit_detection import (
    DEBOUNCE_S,
    GONE,
    HALF_WRITTEN_S,
    EditDetector,
    Unread,
    read,
)
from dynprof.requests.request import Edit
from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path


def saved(raw: bytes, mtime: int = 1, inode: int = 1) -> Source:
    """Return the reading of a saved file."""
    return Source(raw, inode, mtime)


class Watching:
    """A detector with its own clock."""

    def __init__(self, at_start: Source | Unread) -> None:
        self.detector = EditDetector(at_start)
        self.now_s = 50.0

    def see(self, reading: Source | Unread, after_s: float = 10 * DEBOUNCE_S) -> Edit | None:
        """Let time pass, then look."""
        self.now_s += after_s
        return self.detector.observe(reading, self.now_s, 1e9)


def test_the_content_at_the_start_is_not_an_edit() -> None:
    """The first content is no edit, however often it is read."""
    watching = Watching(saved(b"{}"))
    assert [watching.see(saved(b"{}"), 5) for _ in range(3)] == [None] * 3


def test_a_copy_with_an_old_time_is_saved_when_it_was_made(tmp_path: Path) -> None:
    """A file that `cp -p` gives an old time is a new edit; a `chmod` is not."""
    config = tmp_path / "profiler_config.json"
    config.write_text("{}")
    written_s = config.stat().st_mtime
    os.utime(config, (1e9, 1e9))
    watching = Watching(saved(b"[]"))
    edit = watching.see(read(config))
    assert edit
    assert edit.edited_at_s >= written_s
    config.chmod(0o600)
    assert watching.see(read(config)) is None


def test_the_same_text_saved_again_is_an_edit() -> None:
    """A new modification time or inode makes the same text a new request."""
    watching = Watching(saved(b"{}"))
    assert watching.see(saved(b"{}", mtime=2))
    assert watching.see(saved(b"{}", mtime=2, inode=2))


def test_a_second_write_of_the_same_save_is_no_edit() -> None:
    """An editor that writes the same bytes twice in a moment makes one request."""
    watching = Watching(saved(b"[]"))
    assert watching.see(saved(b"{}", mtime=2))
    assert watching.see(saved(b"{}", mtime=3), DEBOUNCE_S / 2) is None


def test_another_text_in_the_same_tick_of_the_file_system_is_an_edit() -> None:
    """Different bytes distinguish two saves with one time stamp."""
    watching = Watching(saved(b"[]"))
    assert watching.see(saved(b'{"a":1}', mtime=2), 0.001)
    assert watching.see(saved(b'{"a":2}', mtime=2), 0.001)


def test_a_half_written_file_is_waited_for() -> None:
    """Truncated, then growing, then whole: one edit, no problem."""
    watching = Watching(saved(b"{}"))
    for n, raw in enumerate([b"", b'{"act', b'{"active"']):
        assert watching.see(saved(raw, mtime=n + 2), HALF_WRITTEN_S * 0.9) is None
        assert watching.detector.is_pending
    edit = watching.see(saved(b'{"active": 2}', mtime=9))
    assert edit
    assert edit.raw == b'{"active": 2}'
    assert not watching.detector.is_pending


def test_a_file_that_stays_half_written_is_delivered() -> None:
    """A truncated file is delivered once, so that its problem is reported."""
    watching = Watching(saved(b"{}"))
    assert watching.see(saved(b'{"act', mtime=2)) is None
    edit = watching.see(saved(b'{"act', mtime=2), HALF_WRITTEN_S)
    assert edit
    assert edit.raw == b'{"act'
    assert watching.see(saved(b'{"act', mtime=2), HALF_WRITTEN_S) is None


def test_a_file_that_goes_and_returns_is_an_edit() -> None:
    """Deleted and created again within a moment: an edit, and no problem."""
    watching = Watching(saved(b"{}"))
    assert watching.see(GONE) is None
    assert watching.see(saved(b"{}", mtime=2, inode=7))


def test_a_missing_file_is_reported_once() -> None:
    """A missing file becomes a problem after a while, once."""
    watching = Watching(saved(b"{}"))
    assert watching.see(GONE) is None
    edit = watching.see(GONE, HALF_WRITTEN_S)
    assert edit
    assert edit.problems == GONE.problems
    assert watching.see(GONE, HALF_WRITTEN_S) is None


def test_a_directory_moved_away_and_back_is_no_edit() -> None:
    """The same file that returns is no request."""
    watching = Watching(saved(b"{}", mtime=5, inode=5))
    assert watching.see(GONE) is None
    assert watching.see(saved(b"{}", mtime=5, inode=5)) is None


def test_a_file_that_could_not_be_read_at_the_start_is_no_edit() -> None:
    """When it becomes readable, it is the first content; a later save is a request."""
    detector = EditDetector(Unread((Problem("everybody may write"),), 1, 9), started_ns=10)
    assert detector.observe(saved(b"{}", mtime=9), 1.0, 1e9) is None
    assert detector.observe(saved(b"{}", mtime=11), 2.0, 1e9)


def test_each_save_that_is_refused_for_the_same_reason_is_an_edit(tmp_path: Path) -> None:
    """Each save in a world-writable directory is refused, not only the first."""
    tmp_path.chmod(0o777)
    config = tmp_path / "profiler_config.json"
    config.write_text("{}")
    watching = Watching(read(config))
    for second in range(1, 4):
        os.utime(config, ns=(0, second * 10**9))
        assert watching.see(read(config)) is None
        edit = watching.see(read(config), HALF_WRITTEN_S)
        assert edit
        assert "any user can replace the file" in edit.problems[0].text
        assert watching.see(read(config), HALF_WRITTEN_S) is None


def test_a_save_that_is_nested_deeper_than_a_stack_is_held_back() -> None:
    """Deep nesting crashed a job with a high recursion limit, which many scripts set."""
    code = """if True:
        import sys
        from dynprof.config import Source
        from dynprof.requests.edit_detection import EditDetector
        sys.setrecursionlimit(10**6)
        bomb = Source(('{"a":' * 150_000).encode(), 1, 1)
        print(EditDetector(Source(b"", 1, 0)).observe(bomb, 0.0, 0.0))"""
    done = run([sys.executable, "-c", code])
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_many_values_are_a_whole_file_where_they_are_one() -> None:
    """More brackets than the allowed depth may be on one level."""
    watching = Watching(saved(b"{}"))
    many = b'{"metadata": {"x": [' + b", ".join([b"[1]"] * 100) + b"]}}"
    assert watching.see(saved(many[:-1])) is None
    assert watching.see(saved(many, mtime=2)) == Edit(many, 2e-9)


def test_a_change_of_the_owner_is_not_a_save() -> None:
    """The edit has the owner of the saved file."""
    detector = EditDetector(Source(b"{}", 1, 1, 1000))
    assert detector.observe(Source(b"{}", 1, 1, 1001), 0.0, 0.0) is None
    edit = detector.observe(Source(b"{ }", 2, 2, 1001), 0.0, 0.0)
    assert edit
    assert edit.owner == 1001
