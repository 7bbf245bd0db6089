"""Waits until no other thread can be inside a function of torch's profiler any more.

At each operator torch's profiler reads a bare pointer to its state and writes there. Freeing the
state of a recording of all threads at that moment crashes the process. With torch 2.13.0 a loop
over ``profile_all_threads`` with four busy threads does so within seconds. Once the callbacks are
removed, no thread enters any more. The threads inside leave within microseconds of their own CPU
time, which on a busy machine may come late.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from pathlib import Path

PAUSES_S = (0.005, 0.01, 0.02, 0.05)
"""Pauses between checks; the last repeats. The first are short: mostly all threads sleep, and a
step is kept waiting."""
TIMEOUT_S = 60.0
"""Longer than any runnable thread has to wait for a CPU."""
FALL_ASLEEP_S = 1.0
"""Longest wait, in seconds, for threads that are about to sleep."""
TICKS = 2
"""CPU ticks of a thread, 10 ms each, that exceed the time of any such function."""
_TASKS = Path("/proc/self/task")


@dataclasses.dataclass(frozen=True)
class _Thread:
    """The state of a thread at some moment.

    Attributes:
        ticks: The CPU time that it has used, in ticks.
        asleep: Whether it waits for something.
        blocked: Whether it waits inside the kernel, for memory for example, in any function.
    """

    ticks: int
    asleep: bool
    blocked: bool = False

    def has_left(self, now: _Thread | None, pause_s: float) -> bool:
        """Return whether it has left any short function since: it ended, computed or only slept."""
        if now is None or now.ticks >= self.ticks + TICKS:
            return True
        is_sure = pause_s >= PAUSES_S[-1] or not (self.blocked or now.blocked)
        return self.asleep and now.asleep and is_sure


def wait_for_operators(timeout_s: float) -> None:
    """Wait until every other thread sleeps at two checks in a row, or until the timeout.

    A thread asleep at both checks is in no operator, or in one of unlimited duration.
    """
    deadline_s, slept = time.monotonic() + timeout_s, False
    while (left_s := deadline_s - time.monotonic()) > 0:
        sleep = all(seen.asleep for seen in _other_threads().values())
        if slept and sleep:
            return
        slept = sleep
        time.sleep(min(PAUSES_S[0], left_s))


def wait_for_threads_inside() -> None:
    """Wait until every other thread has left any function that takes only microseconds."""
    deadline_s, inside = time.monotonic() + TIMEOUT_S, _other_threads()
    pauses = itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))
    while inside and time.monotonic() < deadline_s:
        time.sleep(pause_s := next(pauses))
        now = {task: _read_thread(task) for task in inside}
        inside = {
            task: dataclasses.replace(last, ticks=seen.ticks)
            for task, seen in inside.items()
            if (last := now[task]) and not seen.has_left(last, pause_s)
        }


def wait_until_asleep(threads: set[int]) -> None:
    """Wait until threads sleep or have ended, up to :data:`FALL_ASLEEP_S`."""
    deadline_s = time.monotonic() + FALL_ASLEEP_S
    while any((seen := _read_thread(task)) and not seen.asleep for task in threads):
        if time.monotonic() > deadline_s:
            return
        time.sleep(0.001)


def native_thread_ids() -> set[int]:
    """Return the system's ids of this process's threads, C++ threads included."""
    with contextlib.suppress(OSError):  # systems without /proc
        return {int(path.name) for path in _TASKS.iterdir()}
    return set()


def _other_threads() -> dict[int, _Thread]:
    """Return the state of every other thread."""
    me = threading.get_native_id()
    return {
        task: seen for task in native_thread_ids() if task != me and (seen := _read_thread(task))
    }


def _read_thread(task: int) -> _Thread | None:
    """Return the state of a thread; None where it has ended."""
    facts = ""
    with contextlib.suppress(OSError):
        facts = (_TASKS / str(task) / "stat").read_text()
    if not facts:
        return None
    state, *fields = facts.rpartition(")")[2].split()
    ticks = int(fields[10]) + int(fields[11])
    return _Thread(ticks, asleep=state != "R", blocked=state == "D")
