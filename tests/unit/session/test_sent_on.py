"""What a job does at its start about captures that others could not send."""

from __future__ import annotations

import os
import shutil
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps, load_manifest
from dynprof.delivery.deliveries import DELIVERED
from dynprof.files.layout import Layout
from dynprof.session.upkeep import Upkeep
from dynprof.wall import Wall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from dynprof.delivery.order import Order


class Log:
    """Takes a journal's place."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def remember(self, *, last_error: str) -> None:
        """Keep nothing."""

    def info(self, text: str) -> None:
        """Keep nothing."""

    def warning(self, text: str) -> None:
        """Keep it."""
        self.warnings.append(text)

    def error(self, text: str) -> None:
        """Keep it."""
        self.errors.append(text)


def left(root: Path, pid: int, host: str = "host") -> Path:
    """Leave a capture of an hour ago, begun and without a trace; return its manifest."""
    info = root / "outgoing" / f"{host}_{pid}.rank0" / "step_1-2_20260101T000000Z" / "info"
    info.mkdir(parents=True)
    manifest = Manifest(
        dynprof="0", backend="fake", versions={}, host=host, pid=pid, rank=0, world_size=1,
        request=RequestRecord(number=1, edited_at="", sha256="", config={"prof_dir": "captures"}),
        steps=Steps(first=1, last=2, recorded=2, warmup=0), activities=("CPU",), opened_at="",
        closed_at=str(pid), complete=True, cost=Cost(open_ms=0, close_ms=0),
    )  # fmt: skip
    path = info / "rank_0.info.json"
    manifest.save(path)
    os.utime(path, (1e9, 1e9))
    return path


def start(
    root: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = lambda: None
) -> tuple[list[str], Log]:
    """Do what a job does; return the folders from which it sends, and what it says."""
    log, folders = Log(), list[str]()

    def sent(order: Order) -> str:
        if not folders:
            meanwhile()
        folders.append(order.folder)
        return DELIVERED

    monkeypatch.setattr("dynprof.session.upkeep.sent", sent)
    clock = SimpleNamespace(wall_s=lambda: 0.0)
    process = SimpleNamespace(layout=Layout(root, 0, "host", 1), clock=clock)
    parts: list[Any] = [process, None, log, Wall(log), None, None, None]
    ended = threading.Event()
    monkeypatch.setattr(ended, "wait", lambda _: True)
    monkeypatch.setattr("dynprof.session.upkeep.own_thread", Thread)
    Upkeep(*cast("Any", parts)).clear_up(ended)
    return folders, log


class Thread:
    """Runs on the calling one."""

    def __init__(self, run: Callable[[], object], _: str) -> None:
        self.start = run


def test_two_jobs_that_start_at_once_send_each_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other has sent meanwhile is gone; that is no failure, and the next is sent."""
    paths = [left(tmp_path, pid) for pid in (2, 3, 4)]
    gone = paths[1].parents[2]
    folders, log = start(tmp_path, monkeypatch, lambda: shutil.rmtree(gone))
    assert folders == [str(paths[n].parents[1]) for n in (0, 2)]
    assert not log.errors
    assert not log.warnings


def test_what_has_been_saved_meanwhile_is_not_sent_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a live job's, which was about to write its manifest when this one looked."""
    first, second = (left(tmp_path, pid) for pid in (2, 3))
    saved = load_manifest(second).model_copy(update={"reason": "it is saved now"})
    folders, log = start(tmp_path, monkeypatch, lambda: saved.save(second))
    assert folders == [str(first.parents[1])]
    assert not log.errors
    assert not log.warnings


def test_however_many_stay_for_one_reason_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of 1,000 ranks may leave as many, and each machine's log would have all of them."""
    paths = [left(tmp_path, pid, host="other") for pid in range(10, 30)]
    folders, log = start(tmp_path, monkeypatch)
    (text,) = log.warnings
    assert not folders
    assert f"the capture in {paths[0].parents[1]} was never sent on: another user's job" in text
    assert text.endswith("; so it is with 19 more, which dynprof status names")
