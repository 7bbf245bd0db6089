"""Garbage is not collected while no other thread may run, and is again after that."""

from __future__ import annotations

import contextlib
import gc
import os
import threading

from dynprof.process.garbage_collector import no_collection
from tests.pace import patience_s


def test_it_is_off_meanwhile_and_on_after_it() -> None:
    """Also where the body raises, and where another thread is in there, whoever leaves first."""
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with no_collection():
            entered.set()
            leave.wait(patience_s())

    other = threading.Thread(target=stay)
    with contextlib.suppress(ZeroDivisionError), no_collection():
        other.start()
        assert entered.wait(patience_s())
        assert not gc.isenabled()
        1 / 0  # noqa: B018 - raises
    assert gc.isenabled()
    leave.set()
    other.join()
    assert gc.isenabled()


def test_a_script_that_collects_none_collects_none_after_it() -> None:
    """It is as it was."""
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_that_is_forked_meanwhile_collects() -> None:
    """Nobody is inside there."""
    with no_collection():
        if (child := os.fork()) == 0:
            with no_collection():
                was_off = not gc.isenabled()
            os._exit(0 if was_off and gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert gc.isenabled()
