"""Threads of dynprof's own."""

from __future__ import annotations

import threading

import pytest

from dynprof.process.threads import STACK, own_thread


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
