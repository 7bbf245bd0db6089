"""One thread at a time, and no thread twice."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from dynprof.process import one_at_a_time
from dynprof.process.one_at_a_time import OneAtATime
from tests.pace import patience_s

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pytest


def on_another_thread(place: OneAtATime) -> bool:
    """Return whether another thread comes in."""
    came: list[bool] = []

    def come() -> None:
        with place.take() as mine:
            came.append(mine)

    thread = threading.Thread(target=come, daemon=True)
    thread.start()
    thread.join(patience_s())
    return came == [True]


def inside(stay: AbstractContextManager[bool], seen: list[bool]) -> None:
    """Come in and leave."""
    with stay as mine:
        seen.append(mine)


def test_one_thread_at_a_time() -> None:
    """A second one waits, and nothing that either does in it is mixed with the other's."""
    place, noted = OneAtATime(), list[int]()

    def come(number: int) -> None:
        for _ in range(200):
            with place.take() as mine:
                noted.extend([number] * 2 if mine else [-1])

    threads = [threading.Thread(target=come, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(noted) == 1600
    assert noted[::2] == noted[1::2]


def test_who_leaves_while_another_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other comes in with its next look."""
    place = OneAtATime()
    frame = sys._getframe()
    assert place.enter(frame)
    runs = one_at_a_time._runs

    def leave(*inside: Any) -> bool:
        runs_still = runs(*inside)
        place.leave(frame)
        return runs_still

    monkeypatch.setattr(one_at_a_time, "_runs", leave)
    assert on_another_thread(place)


def test_no_thread_twice() -> None:
    """What a signal handler asks for amid that is told so, at once; and not afterwards."""
    place, seen = OneAtATime(), list[bool]()
    with place.take() as mine:
        assert mine
        assert place.is_mine
        inside(place.take(), seen)
        assert place.is_mine
    inside(place.take(), seen)
    assert seen == [False, True]


def test_who_has_died_inside_is_not_waited_for() -> None:
    """As when its thread has ended by an exception amid the way out."""
    place = OneAtATime()

    def die() -> None:
        place.take().__enter__()

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    assert on_another_thread(place)


def test_who_is_inside_is_seen_whatever_it_leaves_meanwhile() -> None:
    """As it leaves a generator, that has no frame below it on Python 3.10 and 3.11."""
    place, over, begun = OneAtATime(), threading.Event(), threading.Event()

    def stay() -> None:
        with place.take():
            begun.set()
            while not over.is_set():
                sum(number for number in range(50))

    threads = [threading.Thread(target=stay, daemon=True)]
    threads.append(threading.Thread(target=lambda: any(iter(over.is_set, True)), daemon=True))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        assert begun.wait(patience_s())
        assert place._inside is not None
        unseen = sum(not one_at_a_time._runs(*place._inside) for _ in range(100_000))
    finally:
        over.set()
        sys.setswitchinterval(before)
    assert unseen == 0
