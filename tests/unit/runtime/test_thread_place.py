"""The place of a thread, as text."""

from __future__ import annotations

import threading

from dynprof.runtime.stacks import place_of


def test_the_place_names_the_line_of_the_script_below_functions_of_libraries() -> None:
    """Functions of dynprof count as library functions; they wrap those of torch."""
    place = place_of(threading.get_ident())
    assert " (stacks.py:" in place
    assert f", called at {__file__}:" in place
    assert place.endswith(
        " in test_the_place_names_the_line_of_the_script_below_functions_of_libraries"
    )


def test_the_place_of_a_thread_in_the_script_is_its_line() -> None:
    """The thread waits in C, which has no frame."""
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=_take, args=(lock,))
    thread.start()
    try:
        line = _take.__code__.co_firstlineno + 1
        while not (place := place_of(thread.ident or 0)).endswith(" in _take"):
            assert thread.is_alive()
        assert place == f"{__file__}:{line} in _take"
    finally:
        lock.release()
        thread.join()
    assert place_of(thread.ident or 0) == ""


def _take(lock: threading.Lock) -> None:
    lock.acquire()
