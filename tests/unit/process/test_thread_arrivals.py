"""How often threads of C come into Python, which 3.11 has to know before torch walks over all."""

from __future__ import annotations

import ctypes
import sys
import threading

import pytest

from dynprof.process.thread_arrivals import (
    LOOKS,
    MOST_PER_S,
    ThreadArrivals,
    are_made_without_the_gil,
    states_made,
)


class Threads:
    """Threads that come as a test says, at the time that it says."""

    def __init__(self, *, of_c: bool = True) -> None:
        self.count: int | None = 0
        self.at_s, self.of_c = 0.0, of_c
        self.arrivals = ThreadArrivals(lambda: self.count, lambda: self.of_c, lambda: self.at_s)
        self.arrivals.look()

    def come(self, count: int, within_s: float) -> None:
        """Have so many come, and look."""
        self.count = (self.count or 0) + count
        self.at_s += within_s
        self.arrivals.look()


def test_many_are_said() -> None:
    """With their number a second."""
    threads = Threads()
    threads.come(3_000, within_s=2)
    assert "(1,500 threads a second in all)" in threads.arrivals.too_many()


def test_pythons_own_do_not_count() -> None:
    """However many they are; but C's do for a while that none is just coming."""
    threads = Threads(of_c=False)
    threads.come(3_000, within_s=2)
    assert threads.arrivals.too_many() == ""
    threads.of_c = True
    threads.come(3_000, within_s=2)
    threads.of_c = False
    threads.come(3_000, within_s=2)
    assert threads.arrivals.too_many() != ""
    for _ in range(LOOKS):
        threads.come(3_000, within_s=2)
    assert threads.arrivals.too_many() == ""


def test_a_few_are_not() -> None:
    """Nor is what comes in less than a second, as when an epoch begins."""
    threads = Threads()
    assert threads.arrivals.too_many() == ""
    threads.come(5_000, within_s=0.5)
    assert threads.arrivals.too_many() == ""
    threads = Threads()
    for _ in range(2 * LOOKS):
        threads.come(int(2 * MOST_PER_S) - 1, within_s=2)
        assert threads.arrivals.too_many() == ""


def test_the_last_seconds_count() -> None:
    """A day in which none came does not hide them, and those of before are forgotten."""
    threads = Threads()
    for _ in range(LOOKS):
        threads.come(0, within_s=20_000)
    for _ in range(LOOKS):
        threads.come(2_000, within_s=2)
    assert "(1,000 threads a second" in threads.arrivals.too_many()
    for _ in range(LOOKS):
        threads.come(0, within_s=2)
    assert threads.arrivals.too_many() == ""


def test_where_it_is_not_known_nothing_is_said() -> None:
    """As on all Pythons but one."""
    threads = Threads()
    threads.count = None
    for _ in range(LOOKS):
        threads.at_s += 2
        threads.arrivals.look()
    assert threads.arrivals.too_many() == ""


IS_3_11 = sys.implementation.name == "cpython" and sys.version_info[:2] == (3, 11)


@pytest.mark.skipif(not IS_3_11, reason="only Python 3.11 lists states that are half made")
def test_threads_of_both_kinds_are_counted_and_those_of_c_are_told() -> None:
    """Python's own cannot begin while another thread has the GIL."""
    over = threading.Event()

    def begin_pythons() -> None:
        while not over.is_set():
            ours = threading.Thread(target=int, name="mine")
            ours.start()
            ours.join()

    def begin_cs() -> None:
        in_python = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        while not over.is_set():
            libc.pthread_create(ctypes.byref(thread), None, in_python, None)
            libc.pthread_join(thread, None)

    for begin, are_of_c in ((begin_pythons, False), (begin_cs, True)):
        over.clear()
        beginning = [threading.Thread(target=begin) for _ in range(3)]
        before = states_made()
        for thread in beginning:
            thread.start()
        try:
            assert any(are_made_without_the_gil() for _ in range(100)) is are_of_c
        finally:
            over.set()
            for thread in beginning:
                thread.join()
        after = states_made()
        assert before is not None
        assert after is not None
        assert after - before > 10


@pytest.mark.skipif(IS_3_11, reason="there it is")
def test_other_pythons_need_not_know() -> None:
    """They make states before they list them, or hold the list while they change all."""
    assert states_made() is None
    assert not are_made_without_the_gil()
