"""The thread of a rank that takes part ends when it is told to, whatever it is at."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from dynprof.config import RankSet
from dynprof.coordination import coordinator as coordinator_module
from dynprof.coordination import leader, roll
from dynprof.coordination.coordinator import NOT_ASKED, Coordinator
from dynprof.coordination.job_group import JobGroup
from dynprof.coordination.job_store import JOINED
from dynprof.coordination.messages import Joined, Opening, Proposal, Reply, Withdrawal
from dynprof.coordination.terms import SILENT, Agreement, Terms
from dynprof.coordination.wire import to_text
from dynprof.wall import StderrNotes, Wall
from tests.memory_store import MemoryStore
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import pytest

    from dynprof.coordination.leader import Leader
    from dynprof.coordination.participant import Participant


class Alone:
    """A leader's rank that can, a wall without a failure, and a keeper that waits for nothing."""

    number = under_way = 0
    waits: tuple[int, ...] = ()
    unheard = stands = False

    def consider(self, proposal: Proposal) -> Reply:
        """Say that it can."""
        del proposal
        return Reply(0, takes_part=True)

    def wait_no_more_with(self, superseded: Collection[tuple[int, int]]) -> None:
        """Wait with nothing."""

    def wait_for(self, number: int, ranks: Mapping[int, str]) -> None:
        """Hear who is waited for."""

    def hear(self, number: int, replies: Mapping[int, Reply]) -> None:
        """Hear of others."""

    def leave(self) -> None:
        """Hear of nobody any more."""

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

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Look at a value."""
        if key.endswith("/replies") and not self.ended:
            self.ended = True
            end = threading.Thread(target=self.coordinator.end, daemon=True)
            end.start()
            while not self.coordinator._ended.is_set():
                threading.Event().wait(0.0005)
        return super().compare_set(key, expected, desired)


class Failing(Alone):
    """A rank that fails at each first thing it is told, and then no more."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def consider(self, proposal: Proposal) -> Reply:
        """Fail, or say that it can."""
        self._fail_once("consider")
        return super().consider(proposal)

    def where(self, number: int) -> Reply:
        """Fail, or say where it is."""
        del number
        self._fail_once("where")
        return Reply(0)

    def withdraw(self, withdrawal: Withdrawal) -> Reply:
        """Fail, or forget it."""
        del withdrawal
        self._fail_once("withdraw")
        return Reply(0)

    def open_at(self, opening: Opening) -> Reply:
        """Fail, or open."""
        del opening
        self._fail_once("open_at")
        return Reply(0)

    def _fail_once(self, doing: str) -> None:
        if doing not in self._failed:
            self._failed.add(doing)
            raise UnicodeEncodeError("utf-8", "\udc80", 0, 1, doing)


def leader_of(group: JobGroup, me: Alone | None = None, wall: Wall | None = None) -> Coordinator:
    """Return one that is alone with what it leads, and has not begun."""
    alone = me or Alone()
    guard = wall or cast("Wall", alone)
    return Coordinator(group, cast("Participant", alone), "a test", guard, print, alone)


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


def test_a_rank_that_fails_at_something_goes_on_to_agree() -> None:
    """Why is said where it leads, and to the others; what is proposed next is agreed on."""
    store = MemoryStore()
    made: list[Agreement] = []
    coordinator = leader_of(Group(0, 2, lambda: store), Failing(), Wall(StderrNotes()))
    begin_with_a_listener(coordinator, store)
    terms = Terms(RankSet.parse("0"))
    for number in range(1, 5):
        coordinator.propose(Proposal(number, "{}", 0.0, 0.05), terms, made.append)
    while len(made) < 4:
        assert coordinator._thread.is_alive()
        threading.Event().wait(0.001)
    coordinator.end()
    assert not coordinator.failed
    failed = "dynprof failed at it: UnicodeEncodeError: 'utf-8' codec can't encode character"
    assert [one.step is not None for one in made] == [False, False, True, True]
    assert all(one.reasons[0].startswith(f"rank 0: {failed}") for one in made[:2])
    assert [[*one.left_out] for one in made[2:]] == [[0], []]
    assert made[2].left_out[0].startswith(failed)


class Keeper(Alone):
    """A keeper of one window that is over, but for a rank that is silent.

    Attributes:
        heard: The requests that it has heard of.
        waited_for: Which waited for which ranks.
    """

    number, unheard = 4, True

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.waited_for: list[tuple[int, Mapping[int, str]]] = []

    def wait_for(self, number: int, ranks: Mapping[int, str]) -> None:
        """Note it."""
        self.waited_for.append((number, ranks))

    def hear(self, number: int, replies: Mapping[int, Reply]) -> None:
        """Note it."""
        del replies
        self.heard.append(number)

    def where(self, number: int) -> Reply:
        """Say nothing."""
        del number
        return Reply(0)

    def withdraw(self, withdrawal: Withdrawal) -> Reply:
        """Hear that there is no window."""
        del withdrawal
        return Reply(0)


def lead_and_end(keeper: Keeper) -> None:
    """Lead, and end at once."""
    store = MemoryStore()
    coordinator = leader_of(Group(0, 2, lambda: store), keeper)
    coordinator.begin()
    while "dynprof/leader" not in store.values:
        threading.Event().wait(0.0005)
    coordinator.end()
    assert not coordinator._thread.is_alive()


def test_who_was_silent_is_asked_once_more_at_the_end() -> None:
    """It may have its capture by then; the end does not wait for it to speak."""
    keeper = Keeper()
    lead_and_end(keeper)
    assert keeper.heard[-1:] == [4]


class Alternating(Keeper):
    """A keeper of two windows in which a rank is silent."""

    @property
    def number(self) -> int:  # type: ignore[override]
        """The one that was not asked about last."""
        return 9 - (self.heard or [5])[-1]


def test_at_the_end_each_window_is_asked_about_in_which_a_rank_was_silent() -> None:
    """Once."""
    store, keeper = MemoryStore(), Alternating()
    coordinator = leader_of(Group(0, 2, lambda: store), keeper)
    coordinator._hears_the_last = True
    coordinator._hear_the_last(cast("Leader", SimpleNamespace(roll_call=lambda *_: {})))
    assert keeper.heard == [4, 5]


class Standing(Keeper):
    """A keeper of a window whose ranks wait for the one that leads."""

    waits, under_way, stands, left = (4,), 1, True, 0

    def leave(self) -> None:
        """Note it."""
        self.left += 1


def test_the_end_does_not_wait_for_ranks_that_wait_for_this_one() -> None:
    """They could not go on before its end; their windows are brought to an end without them."""
    keeper = Standing()
    lead_and_end(keeper)
    assert keeper.left == 1


def test_the_roll_is_called_while_ranks_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes of earlier windows is known meanwhile; a cancel ends the waiting."""
    monkeypatch.setattr(leader, "SOON_S", 0.01)
    monkeypatch.setattr(roll, "SOON_S", 0.01)
    monkeypatch.setattr(coordinator_module, "WATCHED_S", 0.01)
    store, keeper = MemoryStore(), Keeper()
    made: list[Agreement] = []
    coordinator = leader_of(Group(0, 2, lambda: store), keeper)
    begin_with_a_listener(coordinator, store)
    coordinator.propose(Proposal(1, "{}", 0.0, 3600.0), Terms(RankSet.parse("all")), made.append)
    while 1 in coordinator._not_begun:
        threading.Event().wait(0.0005)
    keeper.heard.clear()
    while len(keeper.heard) < 3:
        threading.Event().wait(0.0005)
    assert made == []
    assert keeper.waited_for[-1] == (1, {1: SILENT})
    coordinator.take_back("disarmed", "disarmed by request 2")
    while not made:
        threading.Event().wait(0.0005)
    assert (made[0].outcome, made[0].reasons) == ("disarmed", ("disarmed by request 2",))
    coordinator.end()
