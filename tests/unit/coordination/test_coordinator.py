"""The thread of a rank that takes part ends when it is told to, whatever it is at."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from dynprof.config import RankSet
from dynprof.coordination.coordinator import NOT_ASKED, Coordinator
from dynprof.coordination.job_group import JobGroup
from dynprof.coordination.job_store import JOINED
from dynprof.coordination.messages import Joined, Proposal, Reply, to_text
from dynprof.coordination.terms import Agreement, Terms
from tests.memory_store import MemoryStore
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dynprof.coordination.participant import Participant
    from dynprof.wall import Wall


class Alone:
    """A leader's rank that can, a wall without a failure, and a keeper that waits for nothing."""

    number, waits = 0, False

    def consider(self, proposal: Proposal) -> Reply:
        """Say that it can."""
        del proposal
        return Reply(0, takes_part=True)

    def hear(self, number: int, replies: Mapping[int, Reply]) -> None:
        """Hear of others."""

    def left_alone(self, why: str) -> None:
        """Hear that nobody leads."""

    def attempt(self, doing: str, action: Callable[[], object]) -> None:
        """Do it."""
        assert doing
        action()


class Group(JobGroup):
    """A group of two, of which the other listens and never answers."""

    def connect(self) -> MemoryStore:
        """Return its store."""
        return cast("MemoryStore", self.store)


class Lost(Group):
    """A group whose store cannot be reached."""

    def connect(self) -> MemoryStore:
        """Fail."""
        raise RuntimeError("there is none")


class Store(MemoryStore):
    """Has the coordinator end amid a call, while replies are counted.

    Attributes:
        coordinator: That.
        ended: Whether it has.
    """

    coordinator: Coordinator
    ended = False

    def add(self, key: str, amount: int) -> int:
        """Add to a number."""
        if not self.ended:
            self.ended = True
            end = threading.Thread(target=self.coordinator.end, daemon=True)
            end.start()
            while not self.coordinator._ended.is_set():
                threading.Event().wait(0.0005)
        return super().add(key, amount)


def leader_of(group: JobGroup) -> Coordinator:
    """Return one that is alone with what it leads, and has not begun."""
    alone = Alone()
    return Coordinator(
        group, cast("Participant", alone), "a test", cast("Wall", alone), print, alone
    )


def begin_with_a_listener(coordinator: Coordinator, store: MemoryStore) -> None:
    """Have it lead, and rank 1 listen that never answers."""
    coordinator.begin()
    while "dynprof/leader" not in store.values:
        threading.Event().wait(0.0005)
    store.append(JOINED, to_text(Joined(1, 0)) + "\n")


def test_a_leader_that_ends_amid_an_agreement_gives_it_up() -> None:
    """It waits for no reply then: a rank that is silent may take the whole patience."""
    store = Store()
    made: list[Agreement] = []
    coordinator = store.coordinator = leader_of(Group(0, 2, lambda: store))
    begin_with_a_listener(coordinator, store)
    coordinator.propose(Proposal(1, "{}", 0.0, 3600.0), Terms(RankSet.parse("all")), made.append)
    coordinator._thread.join(patience_s())
    assert not coordinator._thread.is_alive()
    assert [one.reasons for one in made] == [NOT_ASKED]


def test_what_is_proposed_just_as_the_store_is_lost_is_answered() -> None:
    """Nobody takes it any more; whoever saved it would wait for an answer for ever."""
    made: list[Agreement] = []
    coordinator = leader_of(Lost(0, 2, object))
    assert coordinator.leads
    coordinator.begin()
    coordinator._thread.join(patience_s())
    coordinator.propose(Proposal(1, "{}", 0.0, 1.0), Terms(RankSet.parse("all")), made.append)
    assert [(one.step, one.reasons) for one in made] == [(None, NOT_ASKED)]


def test_what_has_not_begun_can_be_taken_back() -> None:
    """It never begins, and is not answered here; what the ranks are being asked goes on."""
    store = MemoryStore()
    made: list[Agreement] = []
    coordinator = leader_of(Group(0, 2, lambda: store))
    begin_with_a_listener(coordinator, store)
    for number in (1, 2, 3):
        coordinator.propose(
            Proposal(number, "{}", 0.0, 3600.0), Terms(RankSet.parse("all")), made.append
        )
        while 1 in coordinator._not_begun:
            threading.Event().wait(0.0005)
    assert coordinator.take_back("superseded", "by 4") == [2, 3]
    assert coordinator.take_back("superseded", "by 5") == []
    coordinator.end()
    assert [one.number for one in made] == [1]
