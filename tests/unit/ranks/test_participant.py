"""The threads of ranks: they agree, leave in order, and return after the store was away."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dynprof.ranks import leader, participant, store
from dynprof.ranks.messages import (
    LEFT_GROUP,
    SILENT,
    Joined,
    Opening,
    Proposal,
    Reply,
    Report,
    to_text,
)
from dynprof.ranks.participant import Participant
from dynprof.ranks.store import NO_MESSAGE, Keys, StoreLostError, TimedStore
from dynprof.runtime.error_boundary import ErrorBoundary
from tests.unit.ranks.memory_store import MemoryStore
from tests.unit.ranks.simulated import Records, config_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynprof.ranks.agreement_rules import Agreement
    from dynprof.ranks.member import Member
    from dynprof.ranks.messages import Message
    from dynprof.ranks.store import JobGroup


class Group:
    """The ranks of a store that may be away."""

    is_gone = False

    def __init__(self, rank: int, size: int, stores: list[MemoryStore]) -> None:
        self.rank, self.world_size, self._stores = rank, size, stores

    def connect(self) -> list[TimedStore]:
        """Return connections to the newest store."""
        if self._stores[-1].is_lost:
            raise StoreLostError("no route")
        return [TimedStore(self._stores[-1]) for _ in range(2)]


class Notes:
    """A fake of the journal."""

    def set_status(self, *, last_error: str) -> None:
        """Ignore it."""

    def error(self, text: str) -> None:
        """Ignore it."""


class Nothing(Records):
    """Records without a window."""

    pending: dict[int, set[int]] = {}

    def write(self) -> None:
        """Write none."""

    def drop_others(self, why: str) -> None:
        """Drop none."""


class Rank:
    """A rank: its threads, and its received messages."""

    numbers = None
    is_proposed = is_unready = False
    last_message_s = 0.0

    def __init__(self, rank: int, size: int, stores: list[MemoryStore]) -> None:
        self.rank, self.fails = rank, False
        self.heard: list[Message] = []
        self.said: list[str] = []
        self.windows = Nothing()
        self.made = self.windows.settled
        self.alone: list[str] = []
        self.busy = ""
        self.part = Participant(
            cast("JobGroup", Group(rank, size, stores)),
            cast("Member", self),
            f"rank {rank}",
            ErrorBoundary(Notes()),
            self.said.append,
        )

    def answer(self, message: Message, place: int) -> Reply:
        """Follow the leader's message."""
        if self.fails:
            raise FileNotFoundError("no such folder")
        self.heard.append(message)
        self.place, self.is_unready = place, bool(self.busy)
        number = getattr(message, "number", 0)
        report = Report(self.rank, number, step_s=0.01)
        step = int(time.monotonic() * 100)
        return Reply(
            self.rank, place, report, takes_part=True, step=step, fast_s=0.01, busy=self.busy
        )

    def ready_again(self) -> Reply | None:
        """Return a reply once it is free."""
        if self.busy or not self.is_unready:
            return None
        return self.answer(Opening(1, 0), self.place)

    def news(self) -> None:
        """Return no news."""

    def reports(self) -> tuple[Report, ...]:
        """Return no reports."""
        return ()

    def refuse_pending(self, why: str) -> None:
        """Note it."""
        self.alone.append(why)


def until(found: Callable[[], object]) -> None:
    """Wait for other threads."""
    waits = threading.Event()
    for _ in range(3000):
        if found():
            return
        waits.wait(0.01)
    raise AssertionError("it did not come")


@pytest.fixture
def stores() -> list[MemoryStore]:
    """Return the list of stores; a test may add the next one."""
    return [MemoryStore()]


@pytest.fixture
def ranks(stores: list[MemoryStore]) -> Iterator[list[Rank]]:
    """Return three ranks that have met."""
    made = [Rank(number, 3, stores) for number in range(3)]
    for rank in made:
        rank.part.begin()
    until(lambda: meets(made))
    yield made
    for rank in reversed(made):
        rank.part.end()
    assert not [
        one for one in threading.enumerate() if one.name in ("dynprof-ranks", "dynprof-listen")
    ]


def meets(ranks: list[Rank]) -> bool:
    """Return whether the leader hears all other ranks."""
    leading = ranks[0].part._leading
    return bool(leading and leading.leader.others == {1, 2})


def propose(rank: Rank, number: int, **terms: object) -> None:
    """Let a rank propose a window."""
    proposal, config = Proposal(number, "{}", 0.0), config_of(**terms)  # type: ignore[arg-type]
    rank.part.lead(lambda leader: leader.propose(proposal, config), lambda: rank.alone.append(""))


def agree(ranks: list[Rank], number: int, **terms: object) -> Agreement:
    """Let them agree on a window."""
    propose(ranks[0], number, **terms)
    until(lambda: ranks[0].made and ranks[0].made[-1].number == number)
    return ranks[0].made[-1]


def steps(rank: Rank) -> list[int]:
    """Return the steps at which a rank was told to open."""
    return [one.step for one in rank.heard if isinstance(one, Opening) and one.step]


def test_ranks_agree_and_an_idle_job_makes_no_calls_to_the_store(
    ranks: list[Rank], stores: list[MemoryStore]
) -> None:
    """Each gets the same step."""
    made = agree(ranks, 1)
    assert made.ranks == (0, 1, 2)
    until(lambda: [steps(rank) for rank in ranks] == [[made.step]] * 3)
    until(lambda: stores[0].calls == before(stores[0]))
    calls = stores[0].calls
    for rank in ranks:
        rank.part.changed()
    assert stores[0].calls == calls


def before(store: MemoryStore) -> int:
    """Return the number of calls a moment ago."""
    calls = store.calls
    threading.Event().wait(0.05)
    return calls


@pytest.mark.parametrize("rank", [0, 1])
def test_a_busy_rank_reports_when_it_is_free(ranks: list[Rank], rank: int) -> None:
    """The rank checks itself, not the store."""
    ranks[rank].busy = "it saves"
    threading.Timer(0.2, setattr, (ranks[rank], "busy", "")).start()
    made = agree(ranks, 1)
    assert made.ranks == (0, 1, 2)
    assert made.took_s > 0.15


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_still_agrees_later(ranks: list[Rank], rank: int) -> None:
    """The others get the reason; the next window is agreed."""
    ranks[rank].fails = True
    made = agree(ranks, 1)
    why = f"rank {rank}: dynprof failed at it: FileNotFoundError: no such folder"
    assert made.reasons == (why,)
    ranks[rank].fails = False
    assert agree(ranks, 2).ranks == (0, 1, 2)


def test_a_leader_that_was_stopped_hears_new_ranks_before_it_proposes(
    ranks: list[Rank], stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The duration does not matter: the notification may be read after the edit."""
    monkeypatch.setattr(leader, "JOIN_S", 0.0)
    for rank in ranks[1:]:
        rank.part.end()
    until(lambda: ranks[0].part._leading and not ranks[0].part._leading.leader.others)
    stores[0].append(Keys.news, to_text(Joined(2)) + "\n")
    assert agree(ranks, 1, patience_s=0.1).left_out == {1: LEFT_GROUP, 2: SILENT}


def test_a_rank_that_leaves_refuses_what_is_proposed_and_the_others_agree(
    ranks: list[Rank],
) -> None:
    """No leader will conclude it there. The others name it; its threads end at once."""
    ranks[2].is_proposed = True
    ranks[2].part.end()
    assert ranks[2].alone == ["this rank has left the process group, or ends"]
    assert reader() == 2
    until(lambda: ranks[0].part._leading and ranks[0].part._leading.leader.others == {1})
    assert agree(ranks, 1).left_out == {2: LEFT_GROUP}


def test_a_leader_that_ends_has_the_others_leave_the_store(
    ranks: list[Rank], stores: list[MemoryStore]
) -> None:
    """No rank waits as the server ends, and little is left in the store."""
    agree(ranks, 1)
    ranks[0].part.end()
    assert not [one for one in threading.enumerate() if one.name == "dynprof-listen"]
    assert [rank.alone for rank in ranks[1:]] == [["the leader has ended"]] * 2
    assert len(stores[0].values) < 16


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_failure", [False, True])
def test_a_rank_that_stops_agreeing_leaves_the_store(
    ranks: list[Rank], rank: int, is_failure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group is gone, or dynprof has failed: no message would wake the thread that blocks there.

    Such a thread in C++ would abort the process as Python ends.
    """
    if is_failure:
        monkeypatch.setattr(ranks[rank], "news", lambda: [][0])
        ranks[rank].part.changed()
        until(lambda: ranks[rank].part.is_over)
    else:
        ranks[rank].part.group.is_gone = True  # type: ignore[misc]
        ranks[rank].part.end()
    tells_all = rank == 0 and not is_failure
    until(lambda: reader() == (0 if tells_all else 2))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_leader_renews_each_wait_and_silent_ranks_reconnect(
    stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """A network may drop an idle connection without notice to either side."""
    monkeypatch.setattr(participant, "RENEW_WAITS_S", 0.05)
    monkeypatch.setattr(participant, "SILENCE_LIMIT_S", 0.5)
    monkeypatch.setattr(participant, "PAUSE_S", 0.05)
    made = [Rank(number, 3, stores) for number in range(3)]
    cut = MemoryStore()  # where nothing is ever sent
    connect = made[rank].part.group.connect
    ways = iter([[connect()[0], TimedStore(cut)]])
    monkeypatch.setattr(made[rank].part.group, "connect", lambda: next(ways, None) or connect())
    made[0].part.begin()
    until(lambda: made[0].part.leads)
    for one in made[1:]:
        one.part.begin()
    until(lambda: made[rank].alone)
    until(lambda: meets(made))
    assert agree(made, 1).ranks == (0, 1, 2)
    assert "the job's store was lost: it has not answered for 180 s" in made[rank].said[0]
    assert rank == 0 or not made[2].alone
    cut.lose()
    for one in reversed(made):
        one.part.end()


class Mortal:
    """The store of a process that is killed after ``left`` more calls."""

    def __init__(self, store: MemoryStore) -> None:
        self._store, self.left = store, 1_000_000

    def wait(self, keys: list[str], _: object) -> None:
        """Wait for a value, or for the end."""
        while keys[0] not in self._store.values:
            if self.left < 0:
                raise RuntimeError("killed")
            threading.Event().wait(0.001)

    def __getattr__(self, name: str) -> Callable[..., object]:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("killed")
        return cast("Callable[..., object]", getattr(self._store, name))


@pytest.mark.parametrize("calls", range(14))
def test_a_leader_that_dies_leaves_all_or_none_with_a_step(
    stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """All ranks open its proposal at one step, or none does; they agree with its successor."""
    made, mortal = [Rank(number, 3, stores) for number in range(3)], Mortal(stores[0])
    monkeypatch.setattr(
        made[0].part.group, "connect", lambda: [TimedStore(mortal), TimedStore(mortal)]
    )
    for rank in made:
        rank.part.begin()
    until(lambda: meets(made))
    mortal.left = calls
    made[0].part.group.is_gone = True  # type: ignore[misc]
    propose(made[0], 1)
    until(lambda: made[0].part.is_over or steps(made[2]))
    made[0].part.end()
    again = [Rank(0, 3, stores), *made[1:]]
    again[0].part.begin()
    until(lambda: meets(again) and all(rank.alone for rank in made[1:]))
    assert steps(made[1]) == steps(made[2])
    assert agree(again, 2).ranks == (0, 1, 2)
    for rank in (*made[1:], again[0]):
        rank.part.end()


def test_an_edit_waits_once_for_a_leader_without_dynprof(
    stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later edits are served at once."""
    waits_s: list[float] = []
    alone = Rank(1, 2, stores)
    monkeypatch.setattr(alone.part._decided, "wait", waits_s.append)
    alone.part.wait_until_decided(10.0)
    monkeypatch.setattr(alone.part, "_began_s", time.monotonic() - 10.0)
    alone.part.wait_until_decided(10.0)
    assert waits_s[0] > waits_s[1] == 0.0


def reader() -> int:
    """Return how many ranks may be in the store."""
    return sum(one.name == "dynprof-listen" for one in threading.enumerate())


def test_a_store_that_falls_silent_is_tried_again_soon(
    ranks: list[Rank], stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses grow with the time without a store, not with the job's age."""
    part, pauses = ranks[1].part, list[float]()
    monkeypatch.setattr(part, "_pause", pauses.append)
    part._served_s -= 1e5
    part._lose("it is silent")  # as the journal's thread notices first
    stores[0].lose()
    until(lambda: pauses)
    assert pauses[0] == participant.PAUSE_S


@pytest.mark.parametrize(("away_s", "pause_s"), [(40.0, 10.0), (1000.0, 60.0)])
def test_a_store_that_is_away_is_tried_again_within_a_quarter_of_that_time(
    stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch, away_s: float, pause_s: float
) -> None:
    """A rank tries again after a quarter of that time, and after a minute at most."""
    now, pauses = [0.0], list[float]()
    monkeypatch.setattr(participant, "time", SimpleNamespace(monotonic=lambda: now[0]))
    part = Rank(1, 2, stores).part

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        part._ended.set()

    monkeypatch.setattr(part, "_pause", pause)
    stores[0].lose()
    now[0] = away_s
    part._serve_until_ended()
    assert pauses == [pause_s]


def test_a_rank_that_was_away_refuses_the_proposal_and_agrees_on_the_next(
    ranks: list[Rank], stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank whose next message was deleted gives up the proposal, and joins again."""
    place, value_of = int(stores[0].values[Keys.next]), store.value_of
    deleted = [Keys.message(place)] * 2

    def value(calls: MemoryStore, key: str) -> bytes | None:
        if key in deleted:
            deleted.remove(key)
            return None
        return value_of(calls, key)

    monkeypatch.setattr(store, "value_of", value)
    stores[0].set(Keys.message(place), NO_MESSAGE)
    until(lambda: all(rank.alone for rank in ranks[1:]))
    why = "this rank was away, and the others continued"
    assert [rank.alone for rank in ranks] == [[], [why], [why]]
    assert agree(ranks, 1).ranks == (0, 1, 2)


def test_ranks_agree_again_once_the_store_is_back(
    ranks: list[Rank], stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store is away each rank serves itself, and says so."""
    monkeypatch.setattr(participant, "PAUSE_S", 0.05)
    stores[0].lose()
    until(lambda: all(rank.alone for rank in ranks))
    assert not ranks[0].part.leads
    assert ranks[1].part.leader == ""
    propose(ranks[0], 1)
    until(lambda: "" in ranks[0].alone)
    stores.append(MemoryStore())
    until(lambda: meets(ranks))
    assert agree(ranks, 2).ranks == (0, 1, 2)
    ranks[1].part.mark_joined()  # once more, as after a leader's first message was read twice
    assert ranks[1].said.count("the ranks agree again") == 1
    assert ranks[1].last_message_s > 0.0  # the leader was heard
