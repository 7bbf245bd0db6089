"""Real editors and files: each save is one edit, with events and with polling."""

from __future__ import annotations

import json
import os
import queue
import shutil
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from watchdog.observers.inotify import InotifyObserver

from dynprof.requests import config_watcher, edit_detection
from dynprof.requests.config_watcher import Watcher, WatchMode, choose_mode
from dynprof.requests.edit_detection import DEBOUNCE_S, read
from tests.pace import patience_s, slowness
from tests.processes import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dynprof.requests.request import Edit

HALF_WRITTEN_S = edit_detection.HALF_WRITTEN_S * slowness()
"""Timeout of half-written files; longer than the pauses between the writes below."""
OLD, NEW = '{"active": 1}\n', '{"active": 2}\n'


class Desk:
    """A watched directory and its edits."""

    def __init__(self, root: Path, mode: WatchMode) -> None:
        self.path = root / "desk" / "profiler_config.json"
        self.path.parent.mkdir()
        self.path.write_text(OLD)
        self.edits: queue.Queue[Edit] = queue.Queue()
        self.said: list[str] = []
        self.watcher = Watcher(
            self.path,
            read(self.path),
            on_edit=self.edits.put,
            attempt=lambda _, action: action(),
            say=self.said.append,
            mode=mode,
        )

    def shell(self, command: str) -> None:
        """Run a command in the directory."""
        assert run(["sh", "-c", command], cwd=self.path.parent).returncode == 0

    def next_edit(self) -> Edit:
        """Wait for an edit."""
        return self.edits.get(timeout=patience_s())

    def no_more(self) -> None:
        """Wait for a possible echo, and fail if one comes."""
        time.sleep(HALF_WRITTEN_S * 1.5)
        assert self.edits.empty()


@pytest.fixture(autouse=True)
def _settles_at_the_pace_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the timeout of half-written files by this machine's slowness."""
    for module in (edit_detection, config_watcher):
        monkeypatch.setattr(module, "HALF_WRITTEN_S", HALF_WRITTEN_S)


@pytest.fixture(params=["events", "poll"])
def desk(request: Any, tmp_path: Path) -> Iterator[Desk]:
    """Return a desk that is being watched."""
    desk = Desk(tmp_path, request.param)
    desk.watcher.start()
    yield desk
    desk.watcher.stop()


def write(desk: Desk) -> None:
    """Write in place."""
    desk.path.write_text(NEW)


def write_slowly(desk: Desk) -> None:
    """Truncate, then write in pieces, as some editors and slow disks do."""
    with desk.path.open("w") as file:
        for piece in (NEW[:5], NEW[5:9], NEW[9:]):
            time.sleep(HALF_WRITTEN_S * 0.4)
            file.write(piece)
            file.flush()


def truncate_then_write(desk: Desk) -> None:
    """Truncate the file and close it, then write it."""
    desk.path.write_text("")
    time.sleep(HALF_WRITTEN_S * 0.4)
    desk.path.write_text(NEW)


def replace(desk: Desk) -> None:
    """Write a new file, then rename it over the config."""
    beside = desk.path.with_name("beside.tmp")
    beside.write_text(NEW)
    beside.replace(desk.path)


def return_with_directory(desk: Desk) -> None:
    """Remove the whole directory; later make it again with a new config."""
    shutil.rmtree(desk.path.parent)
    time.sleep(0.1)
    desk.path.parent.mkdir()
    desk.path.write_text(NEW)


VIM = r"vim -es -u NONE -c 'set backup writebackup' -c '%s/1/2/' -c wq profiler_config.json"
NEWS = f"printf '%s\\n' '{NEW.strip()}'"
SAVES: dict[str, Callable[[Desk], None] | str] = {
    "in place": write,
    "atomic replace": replace,
    "truncated, then written": truncate_then_write,
    "written slowly": write_slowly,
    "sed -i": "sed -i s/1/2/ profiler_config.json",
    "vim": VIM,
    "mv from elsewhere": f"{NEWS} > ../new && mv ../new profiler_config.json",
    "tee": f"{NEWS} | tee profiler_config.json > ../copy",
    "deleted and created": f"rm profiler_config.json && sleep 0.2 && {NEWS} > profiler_config.json",
    "directory removed and returned": return_with_directory,
}


@pytest.mark.parametrize("how", SAVES)
def test_a_save_is_one_edit(desk: Desk, how: str) -> None:
    """However the file is saved, there is exactly one edit, with the whole text."""
    save = SAVES[how]
    if save is VIM and not shutil.which("vim"):
        pytest.skip("vim is not installed")
    if isinstance(save, str):
        desk.shell(save)
    else:
        save(desk)
    edit = desk.next_edit()
    assert (edit.raw.decode(), edit.problems) == (NEW, ())
    assert abs(edit.edited_at_s - time.time()) < 30
    desk.no_more()


def test_the_same_text_saved_again_is_an_edit_again(desk: Desk) -> None:
    """A save without a change and a ``touch`` are also requests."""
    for _ in range(3):
        time.sleep(0.2 + DEBOUNCE_S)
        desk.path.write_text(OLD)
        assert desk.next_edit().raw.decode() == OLD
    time.sleep(0.2 + DEBOUNCE_S)
    desk.shell("touch profiler_config.json")
    assert desk.next_edit().raw.decode() == OLD
    desk.no_more()


@pytest.mark.parametrize("mode", ["events", "poll"])
def test_a_touch_is_an_edit_as_soon_as_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: WatchMode
) -> None:
    """A new modification time repeats the request before the next regular check."""
    monkeypatch.setattr(config_watcher, "CHECK_S", patience_s() * 10)
    desk = Desk(tmp_path, mode)
    desk.watcher.start()
    try:
        os.utime(desk.path, (time.time() + 1,) * 2)
        assert desk.next_edit().raw.decode() == OLD
    finally:
        desk.watcher.stop()


def test_only_a_save_is_an_edit(desk: Desk) -> None:
    """Reading, chmod, other files and a swap file are no requests."""
    desk.shell("cat profiler_config.json; chmod 640 profiler_config.json; touch .x.swp other.json")
    desk.no_more()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("rm profiler_config.json", "the file is gone"),
        ("rm profiler_config.json && mkfifo profiler_config.json", "named pipe"),
        ("chmod 666 profiler_config.json && touch profiler_config.json", "chmod o-w"),
    ],
)
def test_an_unreadable_config_is_named(desk: Desk, command: str, words: str) -> None:
    """The problem names what is in place of the file, and watching continues."""
    desk.shell(command)
    edit = desk.next_edit()
    assert words in str(edit.problems[0])
    desk.shell("rm -rf profiler_config.json")
    replace(desk)
    assert desk.next_edit().raw.decode() == NEW


def test_the_last_of_many_saves_arrives(desk: Desk) -> None:
    """No save of a burst is half-written, and the last one arrives."""
    for number in range(300):
        desk.path.write_text(json.dumps({"active": number + 1}))
    last = b""
    while last != b'{"active": 300}':
        edit = desk.next_edit()
        assert json.loads(edit.raw)["active"] <= 300
        last = edit.raw
    desk.no_more()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(24, os.strerror(24)), "Too many open files"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_without_inotify_the_file_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """Without a free inotify instance or thread, the file is polled, and edits arrive."""

    def exhausted(_: object) -> None:
        raise error

    monkeypatch.setattr(InotifyObserver, "start", exhausted)
    desk = Desk(tmp_path, "events")
    desk.watcher.start()
    try:
        assert desk.said == [
            f"polling every 0.5 s, because file events are not available: {reason}"
        ]
        assert desk.watcher.mode == "poll"
        desk.path.write_text(NEW)
        assert desk.next_edit().raw.decode() == NEW
    finally:
        desk.watcher.stop()


@pytest.mark.parametrize(
    ("kind", "asked", "variable", "expected"),
    [
        ("ext4", None, None, ("events", "ext4 file system")),
        ("nfs4", None, None, ("poll", "a nfs4 file system sends no events")),
        ("fuse.sshfs", None, None, ("poll", "a fuse.sshfs file system sends no events")),
        ("nfs4", None, "events", ("events", "DYNPROF_WATCH=events")),
        ("nfs4", "events", "poll", ("events", "watch=events")),
        ("ext4", "auto", "poll", ("poll", "DYNPROF_WATCH=poll")),
    ],
)
def test_how_to_watch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    asked: str | None,
    variable: str | None,
    expected: tuple[str, str],
) -> None:
    """The argument decides, then the variable, then the file system."""
    monkeypatch.delenv("DYNPROF_WATCH", raising=False)
    if variable:
        monkeypatch.setenv("DYNPROF_WATCH", variable)
    mounts = [("/", "overlay"), (str(tmp_path), kind)]
    monkeypatch.setattr(
        psutil,
        "disk_partitions",
        lambda all: [  # noqa: A006, ARG005
            type("Mount", (), {"mountpoint": m, "fstype": f}) for m, f in mounts
        ],
    )
    mode, reason = choose_mode(asked, tmp_path / "below")
    assert mode == expected[0]
    assert reason.startswith(expected[1])


def test_an_unknown_way_of_watching_is_refused() -> None:
    """A typo in the argument or the variable is an error of ``init()``."""
    from pathlib import Path

    with pytest.raises(ValueError, match='watch="inotify" is none of "auto", "events", "poll"'):
        choose_mode("inotify", Path("/"))
