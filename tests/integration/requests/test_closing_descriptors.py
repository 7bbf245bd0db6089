"""A watcher that ends reads no descriptor but its own."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import watchdog.observers.inotify_c as library

from dynprof.requests.edits import read
from dynprof.requests.watcher import Watcher
from tests.pace import patience_s

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class SlowReader:
    """The library's ``os``: a thread about to read stands still until it has been told to end."""

    def __init__(self) -> None:
        self.about_to_read, self.told_to_end = threading.Event(), threading.Event()
        self.go_on = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def read(self, descriptor: int, size: int) -> bytes:
        """Read when allowed."""
        self.about_to_read.set()
        assert self.go_on.wait(patience_s())
        return os.read(descriptor, size)

    def write(self, descriptor: int, data: bytes) -> int:
        """Tell the reader through a pipe, as watchdog does since 6.0."""
        written = os.write(descriptor, data)
        self.told_to_end.set()
        return written

    def close(self, descriptor: int) -> None:
        """Tell the reader by closing what it is about to read, as watchdog did before."""
        os.close(descriptor)
        self.told_to_end.set()


def test_the_scripts_bytes_are_left_to_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor that the script opens as the watcher ends is not read by it: watchdog < 6.0."""
    slow = SlowReader()
    monkeypatch.setattr(library, "os", slow)
    path = tmp_path / "profiler_config.json"
    path.write_text("{}")
    watcher = Watcher(
        path,
        read(path),
        on_edit=lambda _: None,
        attempt=lambda _, action: action(),
        say=lambda _: None,
        mode="events",
    )
    watcher.start()
    (tmp_path / "another").write_text("")
    assert slow.about_to_read.wait(patience_s())
    slow.told_to_end.clear()
    ending = threading.Thread(target=watcher.stop)
    ending.start()
    assert slow.told_to_end.wait(patience_s())
    pipes = [os.pipe() for _ in range(8)]
    for _, entrance in pipes:
        os.write(entrance, b"of the script")
        os.close(entrance)
    slow.go_on.set()
    ending.join()
    for exit_, _ in pipes:
        assert os.read(exit_, 100) == b"of the script"
        os.close(exit_)
