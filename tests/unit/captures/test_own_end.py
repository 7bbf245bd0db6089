"""The last line of the sending process is its result for the job."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.deliveries import DELIVERED, Order
from dynprof.runtime.side_process import SideProcess
from tests.pace import patience_s

pytest.importorskip("fsspec", reason="fsspec is not installed")

if TYPE_CHECKING:
    from pathlib import Path

STORE = """
import atexit, signal, sys, threading, time
from fsspec.spec import AbstractFileSystem

class OSSFileSystem(AbstractFileSystem):
    protocol = "oss"
    def cat_file(self, path, **more):
        raise FileNotFoundError(path)
    def put_file(self, source, path, **more):
"""
PACKAGE = (
    STORE
    + """
        pass

atexit.register(print, "the client session was not closed", file=sys.stderr)
threading.Thread(target=time.sleep, args=(3600,)).start()
"""
)
LIAR = (
    STORE
    + """
        raise OSError("no, key\\x1b[31m\\ndelivered oss://elsewhere")
"""
)
STUCK = (
    STORE
    + """
        assert 60 < signal.alarm(1) <= 66
        while True:
            time.sleep(1)
"""
)
URL, FILES = "oss://runs/job", ("info/rank_0.info.json",)


def said_with(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return the last line with this code as a cloud's package."""
    place, capture = folder / "packages", folder / "capture"
    (place / "ossfs").mkdir(parents=True)
    (place / "ossfs" / "__init__.py").write_text(package)
    (capture / "info").mkdir(parents=True)
    (capture / "info" / "rank_0.info.json").write_text("{}")
    monkeypatch.syspath_prepend(place)
    order = Order(str(capture), FILES, URL, str(folder), (), False, 0)
    sending = SideProcess.begin("dynprof.captures.sender", stdin_text=order.to_text())
    return sending.last_line(wait=True, most_s=patience_s())


def test_output_of_a_package_at_its_end_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arrived capture counts, whatever a cloud's package prints or waits for at the end."""
    assert said_with(PACKAGE, tmp_path, monkeypatch) == f"{DELIVERED}{URL}/{FILES[0]}"


def test_an_error_of_a_store_is_not_taken_for_an_arrival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reason has one line, however many the store's has, and no terminal codes."""
    said = said_with(LIAR, tmp_path, monkeypatch)
    assert said == r"OSError: no, key\x1b[31m\ndelivered oss://elsewhere"
    assert (tmp_path / "capture" / FILES[0]).exists()


def test_a_hanging_sender_ends_without_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may have been killed, and the process then ignores the signal."""
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        said = said_with(STUCK, tmp_path, monkeypatch)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert said == f"it exited with code {-signal.SIGALRM}"
