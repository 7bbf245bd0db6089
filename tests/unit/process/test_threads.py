"""Threads of dynprof's own."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from dynprof.process import threads
from dynprof.process.threads import STACK, own_thread

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("asked", [0, 32_768, STACK // 2, STACK * 4])
def test_the_job_keeps_the_stack_size_that_it_asked_for(asked: int) -> None:
    """A thread of dynprof's that starts meanwhile changes it for a moment only."""
    ran: list[int] = []
    before = threading.stack_size(asked)
    try:
        thread = own_thread(lambda: ran.append(1), "dynprof-test")
        thread.start()
        thread.join()
    finally:
        after = threading.stack_size(before)
    assert (ran, after) == ([1], asked)


def let_begin(monkeypatch: pytest.MonkeyPatch, begin: Callable[..., int]) -> None:
    """Have the system asked for no thread, but a function; nobody waits long for it."""
    monkeypatch.setattr(threads, "LOOK_S", 0.0001)
    for name in BEGINNING:
        if hasattr(threading, name):
            monkeypatch.setattr(threading, name, begin)


def test_a_thread_of_ours_has_a_stack_that_is_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the job wants for its own."""
    begun_with: list[int] = []

    def begin(*_: object, **__: object) -> int:
        begun_with.append(threading.stack_size())
        return 0

    let_begin(monkeypatch, begin)
    before = threading.stack_size(32_768)
    try:
        with pytest.raises(RuntimeError, match="has not begun"):
            own_thread(print, "dynprof-test").start()
    finally:
        threading.stack_size(before)
    assert begun_with == [STACK]


BEGINNING = ("_start_new_thread", "_start_joinable_thread")
"""How the system is asked for a thread, up to Python 3.12 and from 3.13 on."""


def test_a_thread_that_dies_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does for want of memory: nobody waits for ever, or finds it among the living.

    One that only took long does nothing, and says nothing.
    """
    ran: list[int] = []
    begun: list[Callable[[], None]] = []

    def begin(bootstrap: Callable[[], None], *_: object, **__: object) -> int:
        begun.append(bootstrap)
        return 0

    let_begin(monkeypatch, begin)
    thread = own_thread(lambda: ran.append(1), "dynprof-test")
    with pytest.raises(RuntimeError, match="has not begun"):
        thread.start()
    assert thread not in threading.enumerate()
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    over = threading.Lock()
    over.acquire()

    def begin_late() -> None:
        try:
            begun[0]()
        finally:
            over.release()

    _thread.start_new_thread(begin_late, ())
    assert over.acquire(timeout=60)
    assert (len(begun), ran, said) == (1, [], [])
    assert thread not in threading.enumerate()


def test_no_memory_between_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes round by round goes on, once there is some."""
    monkeypatch.setattr(threads, "AGAIN_S", 0.001)
    rounds: list[int] = []

    def go_round() -> None:
        rounds.append(len(rounds))
        if len(rounds) < 3:
            raise MemoryError

    thread = own_thread(go_round, "dynprof-test")
    thread.start()
    thread.join()
    assert rounds == [0, 1, 2]


def test_no_memory_as_a_thread_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun by then, and somebody waits for what it does: it tries again."""
    monkeypatch.setattr(threads, "AGAIN_S", 0.001)
    tried: list[int] = []
    ran: list[int] = []
    signals = signal.valid_signals

    def valid_signals() -> set[signal.Signals]:
        tried.append(1)
        if len(tried) < 3:
            raise MemoryError
        return signals()

    monkeypatch.setattr(signal, "valid_signals", valid_signals)
    thread = own_thread(lambda: ran.append(1), "dynprof-test")
    thread.start()
    thread.join()
    assert (len(tried), ran) == (3, [1])
