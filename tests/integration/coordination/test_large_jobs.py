"""In jobs of more ranks than a store can bear the looks of, one of each machine looks."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from dynprof.coordination.job_store import DIRECT_RANKS
from dynprof.coordination.listener import IDLE_S, Listener
from dynprof.coordination.messages import Question, Reply
from dynprof.coordination.relay import Relay
from dynprof.coordination.speaker import Speaker
from tests.integration.running import wait_for
from tests.memory_store import MemoryStore
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MACHINES, RANKS_A_MACHINE = 2, 8
RANKS = MACHINES * RANKS_A_MACHINE
LARGE = DIRECT_RANKS + 1


class Machines:
    """Ranks of two machines that listen."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self.store, self.ended = MemoryStore(), threading.Event()
        self.heard = [0] * RANKS
        self.speaker = Speaker(self.store, LARGE)
        self.speaker.lead("a test")
        self._folder, self._world_size = folder, world_size
        self.threads = [threading.Thread(target=self._listen, args=(n,)) for n in range(RANKS)]
        for thread in self.threads:
            thread.start()
        wait_for("all to join", lambda: len(self.speaker.listeners()) == RANKS or None)

    def _listen(self, number: int) -> None:
        machine = self._folder / f"machine {number // RANKS_A_MACHINE}"
        machine.mkdir(exist_ok=True)
        listener = Listener(
            self.store, number, self._world_size, MACHINES, self.ended.wait,
            lambda store, pace, name: Relay(store, pace, name, machine),
        )  # fmt: skip
        listener.find_leader()
        while isinstance(listener.hear(), Question):
            self.heard[number] += 1
            listener.reply(Reply(number))
        listener.end()

    def calls_a_second(self) -> float:
        """Return how often the store is asked while nothing happens."""
        time.sleep(4 * IDLE_S)  # until pauses are as long as they become
        began_s, before = time.monotonic(), self.store.calls
        time.sleep(8 * IDLE_S)
        return (self.store.calls - before) / (time.monotonic() - began_s)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Machines]:
    """Return some ranks of a large job."""
    made = Machines(tmp_path, LARGE)
    yield made
    made.ended.set()
    for thread in made.threads:
        thread.join(patience_s())
        assert not thread.is_alive()


def test_where_nothing_happens_one_rank_of_each_machine_looks(large: Machines) -> None:
    """The others look into the machine's memory; all hear what is said, each time."""
    assert large.calls_a_second() <= 2 * MACHINES / IDLE_S  # each looking would take eight times it
    for count in range(1, 4):
        replies = large.speaker.replies(large.speaker.say(Question(count)), patience_s())
        assert sorted(replies) == list(range(RANKS))
        assert large.heard == [count] * RANKS
        time.sleep(2 * IDLE_S)


def test_in_others_each_looks_for_itself(tmp_path: Path) -> None:
    """They learn it sooner so, and the store bears it."""
    small = Machines(tmp_path, RANKS)
    try:
        assert small.calls_a_second() > RANKS / IDLE_S / 2
        assert not list(tmp_path.glob("machine*/*"))
    finally:
        small.ended.set()
