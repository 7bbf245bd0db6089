"""Captures that are being sent, as the job sees them."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.captures import deliveries
from dynprof.captures.deliveries import DELIVERED, Deliveries, DeliveryTask, Order
from dynprof.runtime import fresh_interpreter
from dynprof.runtime.stale_folders import is_unlocked
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def order(name: str, retry_s: float = 0) -> Order:
    """Return a delivery without files."""
    return Order(f"/scratch/{name}", (), f"/captures/{name}", "/", (), False, retry_s)


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def attempt(_: str, action: Callable[[], object]) -> Exception | None:
    """Make an attempt."""
    action()
    return None


def test_captures_are_sent_in_order_and_unsent_ones_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The result of the running one is unknown; the others stay, and each is named."""
    go_on, told = threading.Event(), list[tuple[str, str]]()

    def sent(order: Order) -> str:
        go_on.wait(patience_s())
        return f"{DELIVERED}{order.target}/info/rank_0.info.json"

    monkeypatch.setattr(deliveries, "send_once", sent)
    made = Deliveries(attempt)
    for name in ("a", "b"):
        made.submit(DeliveryTask(order(name), on_end=lambda *said: told.append(said)))
    assert not made.wait(0)
    assert made.left() == [
        "the capture in /scratch/a has not arrived in /captures/a: it may still arrive,"
        " otherwise it stays there",
        "the capture in /scratch/b has not arrived in /captures/b: it stays there",
    ]
    go_on.set()
    assert made.wait(patience_s())
    assert made.left() == []
    assert told == [(f"/captures/{name}/info/rank_0.info.json", "") for name in ("a", "b")]


def test_a_failed_delivery_is_retried_and_then_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure is logged at once, and each new one; the last one remains."""
    reasons = (f"no route, {number // 3}" for number in itertools.count(3))
    monkeypatch.setattr(deliveries, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(deliveries, "LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr(deliveries, "send_once", lambda _: next(reasons))
    trouble, told = list[str](), list[tuple[str, str]]()
    made = Deliveries(attempt)
    made.submit(
        DeliveryTask(
            order("a", 0.05), on_trouble=trouble.append, on_end=lambda *said: told.append(said)
        )
    )
    assert made._idle.wait(patience_s())
    assert trouble[:2] == ["no route, 1", "no route, 2"]
    (end,) = told
    assert end[0] == ""
    assert end[1] != trouble[0]


def test_a_delivery_that_can_no_longer_start_is_not_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the package was removed, for example, the end of the job does not wait."""
    monkeypatch.setattr(fresh_interpreter, "__file__", str(tmp_path / "gone.py"))
    told = list[str]()
    made = Deliveries(attempt)
    made.submit(
        DeliveryTask(order("a", 600), on_trouble=told.append, on_end=lambda *s: told.extend(s))
    )
    assert made._idle.wait(patience_s())
    assert told == [
        "",
        f"nothing can be sent: {tmp_path}/gone.py was removed since the job began; "
        "install dynprof again",
    ]


def test_waiting_captures_need_one_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others leave all waiting captures alone; they may send those that this job has given up."""
    go_on, staging_dir = threading.Event(), tmp_path / "host_1.rank0"
    monkeypatch.setattr(deliveries, "send_once", lambda _: str(go_on.wait(patience_s())))
    made, before = Deliveries(attempt), descriptors()
    for name in map(str, range(50)):
        (staging_dir / name).mkdir(parents=True)
        made.submit(DeliveryTask(replace(order(name), folder=str(staging_dir / name))))
    assert descriptors() <= before + 2
    assert not is_unlocked(staging_dir)
    go_on.set()
    assert made.wait(patience_s())
    assert is_unlocked(staging_dir)


def test_a_trace_of_very_many_files_is_sent(tmp_path: Path) -> None:
    """An NPU's trace is a folder; its file names exceed the limit of a command line."""
    files = tuple(f"{'trace' * 20}/{number}" for number in range(2_000))
    for file in files:
        path = tmp_path / "scratch/step_1" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    target = tmp_path / "captures/step_1"
    made = Order(str(tmp_path / "scratch/step_1"), files, str(target), str(tmp_path), (), False, 0)
    assert deliveries.send_once(made) == f"{DELIVERED}{target}/{files[-1]}"
    assert len(list((target / files[0]).parent.iterdir())) == len(files)
