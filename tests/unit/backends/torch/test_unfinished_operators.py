"""The threads in an operator when a recording ended, from torch's raw trace."""

from __future__ import annotations

import json
import os
import random
import threading
from typing import TYPE_CHECKING

from dynprof.backends.torch.open_annotations import Unfinished
from dynprof.backends.torch.quiescence import native_thread_ids, wait_for_threads_inside

if TYPE_CHECKING:
    from pathlib import Path


def test_the_threads_of_unfinished_events(tmp_path: Path) -> None:
    """Events may be anywhere in a trace of any length; compared with a JSON reader."""
    chance = random.Random(7)  # noqa: S311
    mine, gone = threading.get_native_id(), 2**30
    for count in (0, 1, 3, 20_000):
        events = [
            {
                "ph": "X",
                "name": "aten::mm",
                "tid": chance.choice([mine, gone, gone + 1]),
                "args": {
                    "Input Dims": [[chance.randint(1, 99)] * chance.randint(0, 40)],
                    **({"finished": False} if chance.random() < 0.0002 else {}),
                },
            }
            for _ in range(count)
        ]
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": events}, indent=2))
        found = Unfinished()
        found.read(path)
        told = {event["tid"] for event in events if "finished" in event["args"]}  # type: ignore[operator]
        assert found._threads == told
        assert found.threads() == told & {mine}


def test_threads_of_a_lost_trace_may_be_in_an_operator() -> None:
    """Without a trace every thread of the process counts until it has ended."""
    found, leave = Unfinished(), threading.Event()
    thread = threading.Thread(target=leave.wait)
    thread.start()
    found.assume_all_threads()
    assert thread.native_id in found.threads()
    leave.set()
    thread.join()
    while thread.native_id in native_thread_ids():  # the system's list is late
        os.sched_yield()
    assert thread.native_id not in found.threads()
    assert threading.get_native_id() in found.threads()


def test_threads_that_wait_or_compute_have_left() -> None:
    """Neither an idle thread nor a busy one delays forever."""
    leave = threading.Event()

    def compute() -> None:
        while not leave.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=target) for target in (leave.wait, compute)]
    for thread in threads:
        thread.start()
    wait_for_threads_inside()
    leave.set()
    for thread in threads:
        thread.join()


def test_the_assumption_is_logged_until_those_threads_have_ended() -> None:
    """Findings in a later trace do not count for the lost one."""
    unfinished = Unfinished()
    unfinished.assume_all_threads()
    assert unfinished.threads()
    assert "whose trace was lost" in unfinished.why
    unfinished._threads = {2**30}
    assert unfinished.threads() == set()
    assert "whose trace was lost" not in unfinished.why
