"""Threads of dynprof's own."""

from __future__ import annotations

import threading

import pytest

from dynprof.process.threads import STACK, own_thread


@pytest.mark.parametrize("asked", [0, 32_768, STACK // 2, STACK * 4])
def test_a_stack_is_large_enough_whatever_the_job_asked_for(
    asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of dynprof's that starts changes what the job asked for during a moment only."""
    ran: list[int] = []
    start = threading.Thread.start

    def note_size(thread: threading.Thread) -> None:
        ran.append(size := threading.stack_size())  # which sets it to 0
        threading.stack_size(size)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note_size)
    before = threading.stack_size(asked)
    try:
        thread = own_thread(lambda: ran.append(1), "dynprof-test")
        thread.start()
        thread.join()
    finally:
        after = threading.stack_size(before)
    assert (ran[-1], after) == (1, asked)
    assert ran[0] == 0 or ran[0] >= STACK
