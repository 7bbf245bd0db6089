"""How often threads of C come into Python, which 3.11 has to know before torch walks over all."""

from __future__ import annotations

import ctypes
import sys
import threading

import pytest

from dynprof.process.thread_arrivals import LOOKS, MOST_PER_S, ThreadArrivals, threads_of_c


class Threads:
    """Threads that come as a test says, at the time that it says."""

    def __init__(self) -> None:
        self.count: int | None = 0
        self.at_s = 0.0
        self.arrivals = ThreadArrivals(lambda: self.count, lambda: self.at_s)

    def come(self, count: int, within_s: float) -> None:
        """Have so many come, and look."""
        self.count = (self.count or 0) + count
        self.at_s += within_s
        self.arrivals.look()


def test_many_are_said() -> None:
    """With their number a second."""
    threads = Threads()
    threads.arrivals.look()
    threads.come(3_000, within_s=2)
    assert threads.arrivals.too_many().startswith("1,500 threads a second that C begins")


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
    assert threads.arrivals.too_many().startswith("1,000 threads")
    for _ in range(LOOKS):
        threads.come(0, within_s=2)
    assert threads.arrivals.too_many() == ""


def test_where_it_is_not_known_nothing_is_said() -> None:
    """As on all Pythons but one."""
    threads = Threads()
    threads.count = None
    threads.arrivals.look()
    threads.at_s = 100.0
    assert threads.arrivals.too_many() == ""


class Named(threading.Thread):
    """One of Python's that has a name."""

    def __init__(self) -> None:
        super().__init__(name="mine", target=int)


IS_3_11 = sys.implementation.name == "cpython" and sys.version_info[:2] == (3, 11)


@pytest.mark.skipif(not IS_3_11, reason="only Python 3.11 lists states that are half made")
def test_threads_of_c_are_counted() -> None:
    """Also one that has ended; Python's own are not, unless the script names them."""
    in_python = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    before = threads_of_c()
    for _ in range(30):
        for ours in (threading.Thread(target=int), threading.Thread(target=int), Named()):
            ours.start()
            ours.join()
        libc.pthread_create(ctypes.byref(thread), None, in_python, None)
        libc.pthread_join(thread, None)
    after = threads_of_c()
    assert before is not None
    assert after is not None
    assert 60 <= after - before < 90  # pytest may begin one, too


@pytest.mark.skipif(IS_3_11, reason="there it is")
def test_other_pythons_need_not_know() -> None:
    """They make states before they list them, or hold the list while they change all."""
    assert threads_of_c() is None
