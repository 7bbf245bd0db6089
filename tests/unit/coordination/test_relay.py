"""One rank of a machine hears and replies for all that are there, whichever of them goes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from dynprof.coordination.job_store import DIRECT_RANKS, KEPT, count_at, replies_at, said_at
from dynprof.coordination.messages import Question, Reply
from dynprof.coordination.pace import Pace
from dynprof.coordination.relay import COLLECT_S, Relay
from dynprof.coordination.speaker import Speaker
from dynprof.coordination.wire import lines_of, to_text
from dynprof.process import shared_looks
from dynprof.process.shared_looks import SILENT_S
from tests.memory_store import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 8
LOOK_S = 0.1


class Machine:
    """Ranks of one machine that look when they are told to, by one clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(shared_looks, "_now_s", lambda: self.now_s)
        self.store = MemoryStore()
        self.speaker = Speaker(self.store, DIRECT_RANKS + 1)
        self.speaker.lead("a test")
        self.relays = [
            Relay(self.store, Pace(0, 0), "a log", folder, lambda: self.now_s) for _ in range(RANKS)
        ]
        self.places = [0] * RANKS
        self.alive = set(range(RANKS))

    def look(self, rank: int) -> None:
        """Have one look, and reply to what it hears."""
        if self.relays[rank].said(self.places[rank]) is not None:
            self.relays[rank].reply(self.places[rank], to_text(Reply(rank)))
            self.places[rank] += 1

    def look_all(self, times: int = 1) -> None:
        """Have all that are alive look, some times."""
        for _ in range(times):
            for rank in sorted(self.alive):
                self.look(rank)
            self.now_s += LOOK_S

    def replied(self, place: int) -> list[int]:
        """Return whose replies the leader finds."""
        raw = self.store.values.get(replies_at(place), b"")
        return sorted({one.rank for one in lines_of(Reply, raw)})


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return one whose ranks have begun to listen."""
    made = Machine(tmp_path, monkeypatch)
    made.look_all(3)
    return made


def test_one_asks_for_all(machine: Machine) -> None:
    """The store is asked by one of eight, and each reply is there once, and counted."""
    for place in range(10):
        machine.speaker.say(Question(place))
        before = machine.store.calls
        machine.look_all(2)
        assert machine.replied(place) == list(range(RANKS))
        assert int(machine.store.values[count_at(place)]) == RANKS
        asked = machine.store.calls - before
        assert asked <= 2 + 1 + 2 * (2 if place == 0 else 1)  # its looks, the message, all replies


def test_who_replies_no_more_is_not_waited_for_twice(machine: Machine) -> None:
    """The others' replies are held for a moment, once; from then on for those who live."""
    machine.speaker.say(Question(1))
    machine.look_all(2)
    machine.alive.discard(5)
    others = sorted(machine.alive)
    machine.speaker.say(Question(2))
    for _ in range(2):
        for rank in others:
            machine.look(rank)
    assert machine.replied(1) == []
    machine.now_s += COLLECT_S
    machine.look(0)
    assert machine.replied(1) == others
    machine.speaker.say(Question(3))
    for _ in range(2):
        for rank in others:
            machine.look(rank)
    assert machine.replied(2) == others


def test_one_that_was_stopped_passes_on_what_it_held(machine: Machine) -> None:
    """Though another asks by then."""
    machine.speaker.say(Question(1))
    machine.look_all(2)
    machine.speaker.say(Question(2))
    machine.look(0)
    machine.alive.discard(0)
    machine.look_all(round(SILENT_S / LOOK_S) + 3)
    assert machine.replied(1) == list(range(1, RANKS))
    machine.look(0)
    assert machine.replied(1) == list(range(RANKS))


def test_a_reply_with_a_separator_of_lines_in_it_arrives(machine: Machine) -> None:
    """Where an operator has typed U+2028 into ``prof_dir``, each capture's path has it."""
    said = Reply(5, capture="/c/a\u2028b/info")
    machine.relays[5].reply(0, to_text(said))
    machine.look_all()
    assert lines_of(Reply, machine.store.values[replies_at(0)]) == [said]


@pytest.mark.parametrize("when", ["before it hears", "when it has heard", "when all have replied"])
def test_one_that_falls_silent_is_replaced(machine: Machine, when: str) -> None:
    """The others reply all the same, also where theirs lay with the one that is no more."""
    machine.alive.discard(0) if when == "before it hears" else None
    machine.speaker.say(Question(1))
    if when == "when it has heard":
        machine.look(0)
        machine.alive.discard(0)
    if when == "when all have replied":
        for rank in range(RANKS):
            machine.look(rank)
        machine.alive.discard(0)
    assert set(machine.replied(0)) <= {0}  # the others' lie with it
    machine.look_all(round(SILENT_S / LOOK_S) + 3)
    assert set(machine.replied(0)) >= machine.alive
    machine.speaker.say(Question(2))
    machine.look_all(3)
    assert set(machine.replied(1)) == machine.alive


def test_one_that_ends_passes_on_what_it_has(machine: Machine, tmp_path: Path) -> None:
    """At once, and leaves nothing behind."""
    machine.speaker.say(Question(1))
    for rank in range(RANKS):
        machine.look(rank)
    machine.relays[0].end()
    assert machine.replied(0) == list(range(RANKS))
    for rank in range(1, RANKS):
        machine.relays[rank].end()
    assert not list(tmp_path.iterdir())


def test_one_that_was_stopped_follows_when_it_comes_back(machine: Machine) -> None:
    """What it hears then are the messages that it has missed, from the store."""
    machine.alive.discard(0)
    for place in range(3):
        machine.speaker.say(Question(place))
        machine.look_all(round(SILENT_S / LOOK_S) + 2)
    machine.alive.add(0)
    machine.look_all(4)
    assert machine.places == [3] * RANKS
    assert [machine.replied(place) for place in range(3)] == [list(range(RANKS))] * 3


def test_a_reply_that_nobody_waits_for_is_not_given_again(machine: Machine) -> None:
    """Its place in the store is gone: it would stay there for good."""
    machine.speaker.say(Question(0))
    for rank in range(RANKS):
        machine.look(rank)
    machine.alive.discard(0)
    for place in range(1, KEPT + 3):
        machine.speaker.say(Question(place))
    for key in (said_at(0), count_at(0), replies_at(0)):
        machine.store.delete_key(key)
    machine.relays[1]._replies.take()  # lost with the one that asked
    machine.look_all(round(SILENT_S / LOOK_S) + 3)
    assert replies_at(0) not in machine.store.values


@pytest.mark.parametrize("lost", ["message", "replies", "folder"])
def test_where_the_machine_has_no_memory_to_share_each_asks(
    machine: Machine, tmp_path: Path, lost: str
) -> None:
    """A full or a removed folder costs calls of the store, never a reply."""
    ending = {"message": ".said", "replies": ".replies", "folder": ""}[lost]
    if lost == "folder":
        for path in tmp_path.iterdir():
            path.unlink()
        tmp_path.rmdir()
    else:
        machine.relays[0]._looks.path_beside(ending).mkdir()  # type: ignore[union-attr]
    machine.speaker.say(Question(1))
    machine.look_all(3)
    assert machine.replied(0) == list(range(RANKS))


def test_what_lies_there_and_is_no_reply_is_passed_over(machine: Machine) -> None:
    """Lines without a place, or with a wrong one, reach nobody."""
    for line in ("", "x y", "-1 z", "{}", "1.5 a"):
        machine.relays[3]._replies.put(line)
    machine.speaker.say(Question(1))
    machine.look_all(2)
    assert machine.replied(0) == list(range(RANKS))
    assert sum(key.endswith("/replies") for key in machine.store.values) == 1


def test_whatever_happens_each_that_lives_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks fall silent and come back at random, and look in any order: none that lives is missed.

    Who comes back begins with what the store still has, as one does that is told to join anew.
    """
    for seed in range(20):
        rng = random.Random(seed)  # noqa: S311 - repeatable
        folder = tmp_path / str(seed)
        folder.mkdir()
        machine = Machine(folder, monkeypatch)
        for place in range(12):
            machine.speaker.say(Question(place))
            for _ in range(rng.randrange(30)):
                machine.look(rng.choice(sorted(machine.alive)))
                machine.now_s += rng.random() * LOOK_S
            if rng.random() < 0.4:
                rank = rng.randrange(RANKS)
                machine.alive ^= {rank}
                machine.places[rank] = max(machine.places[rank], place + 1 - KEPT)
            machine.alive = machine.alive or {0}
            machine.look_all(round(SILENT_S / LOOK_S) + 3)
            assert set(machine.replied(place)) >= machine.alive, (seed, place)


def test_one_that_ends_where_the_store_is_gone_leaves_nothing_behind(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 may end first, and the store with it, while replies lie there still."""

    def gone(key: str, value: str) -> None:
        raise RuntimeError(f"no {key} for {value}")

    machine.speaker.say(Question(1))
    for rank in range(RANKS):
        machine.look(rank)
    monkeypatch.setattr(machine.store, "append", gone)
    with pytest.raises(RuntimeError):
        machine.relays[0].end()
    assert not list(tmp_path.iterdir())
