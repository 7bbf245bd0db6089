"""Whether a thread runs Python code, as another thread sees it."""

from __future__ import annotations

import multiprocessing
import os
import threading

from dynprof.runtime.threads import ThreadProgress, own_thread, show_name, state_of_thread


def test_a_main_thread_that_runs_python_code_is_seen() -> None:
    """Also if it never waits; its CPU time grows."""
    main, progress = threading.main_thread(), ThreadProgress()
    has_run, before_s = progress.look(main)
    assert not has_run  # the first look does not know
    while not progress.look(main)[0]:
        sum(range(1000))
    assert progress.look(main)[1] > before_s


def test_a_main_thread_that_waits_runs_nothing() -> None:
    """It waits for a lock in C here; looks in a row find nothing, and the wait is not disturbed."""
    main, progress, released = threading.main_thread(), ThreadProgress(), threading.Lock()

    def watch() -> None:
        still = 0
        while still < 1000:
            still = 0 if progress.look(main)[0] else still + 1
        released.release()

    released.acquire()
    thread = threading.Thread(target=watch)
    thread.start()
    with released:
        thread.join()
    while not progress.look(main)[0]:
        pass


def test_the_main_thread_of_a_forked_child_has_its_own_clock() -> None:
    """Python still has the number of the parent's thread there."""
    results = multiprocessing.get_context("fork").SimpleQueue()

    def look() -> None:
        progress = ThreadProgress()
        sum(range(10_000))
        results.put(progress.look(threading.main_thread())[1])

    child = multiprocessing.get_context("fork").Process(target=look)
    child.start()
    assert results.get() > 0
    child.join()


def test_another_thread_runs_while_it_gives_its_cpu_away() -> None:
    """A training loop may be in any thread; one that waits or has ended runs nothing."""
    progress, waits, goes_on, ends = ThreadProgress(), *(threading.Event() for _ in range(3))

    def train() -> None:
        while not waits.is_set():
            sum(range(1000))
        goes_on.wait()
        ends.wait()

    thread = threading.Thread(target=train)
    thread.start()
    assert not progress.look(thread)[0]
    while not progress.look(thread)[0]:
        pass
    assert progress.look(thread)[1] > 0
    waits.set()
    still = 0
    while still < 1000:
        still = 0 if progress.look(thread)[0] else still + 1
    goes_on.set()
    while not progress.look(thread)[0]:
        pass
    ends.set()
    thread.join()
    progress.look(thread)
    assert progress.look(thread) == (False, 0.0)


def test_the_state_of_a_thread_is_seen_by_its_name() -> None:
    """Another process sees it in the same way; it sleeps here, and then ends."""
    named, end = threading.Event(), threading.Event()

    def wait() -> None:
        show_name()
        named.set()
        end.wait()

    thread = own_thread(wait, "dynprof-test")
    thread.start()
    named.wait()
    while state_of_thread(os.getpid(), "dynprof-test") != "S":
        pass
    end.set()
    thread.join()
    while state_of_thread(os.getpid(), "dynprof-test"):
        pass
