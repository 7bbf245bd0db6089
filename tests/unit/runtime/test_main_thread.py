"""Whether the main thread runs Python code, as another thread sees it."""

from __future__ import annotations

import threading

from dynprof.runtime.threads import MainThread


def test_a_main_thread_that_runs_python_code_is_seen() -> None:
    """Also if it never waits; its CPU time grows."""
    main = MainThread()
    has_run, before_s = main.look()
    assert not has_run  # the first look does not know
    while not main.look()[0]:
        sum(range(1000))
    assert main.look()[1] > before_s


def test_a_main_thread_that_waits_runs_nothing() -> None:
    """It waits for a lock in C here; looks in a row find nothing, and the wait is not disturbed."""
    main, released = MainThread(), threading.Lock()

    def watch() -> None:
        still = 0
        while still < 1000:
            still = 0 if main.look()[0] else still + 1
        released.release()

    released.acquire()
    thread = threading.Thread(target=watch)
    thread.start()
    with released:
        thread.join()
    while not main.look()[0]:
        pass
