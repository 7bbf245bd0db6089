"""Ranks that are threads agree on a step, over a store in memory."""

from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dynprof.config import RankSet
from dynprof.coordination import listener
from dynprof.coordination.follower import Follower
from dynprof.coordination.job_store import JOINED, KEPT, NEXT, said_at
from dynprof.coordination.leader import Leader
from dynprof.coordination.listener import Listener
from dynprof.coordination.messages import (
    Cancellation,
    Farewell,
    Joined,
    Mark,
    Opening,
    Parted,
    Profiler,
    Proposal,
    Reply,
    Withdrawal,
)
from dynprof.coordination.roll import JOIN_S, SOON_S
from dynprof.coordination.speaker import Speaker
from dynprof.coordination.terms import NO_DYNPROF, PARTED, SILENT, NoWindowError, Terms
from dynprof.coordination.wire import to_text
from tests.memory_store import MemoryStore
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

TORCH, GPU = Profiler("torch", ("CPU",)), Profiler("torch", ("CPU", "CUDA"))
PROPOSAL = Proposal(1, '{"active": 3}', 0.0, patience_s=10.0)
SECOND = replace(PROPOSAL, number=2)


def exact(step: int, collectives: int, of_step: int) -> Mark:
    """Return a mark of NCCL's count."""
    return Mark(step, collectives, of_step, is_exact=True)


class Rank:
    """A rank of a job that stands at one step.

    Attributes:
        opens: The steps at which it was to open.
        withdrawn: Why it was not to.
        cancelled: Numbers of what was cancelled.
        superseded: Of what it is not to wait with any more.
        alone: Why nobody said any more what became of something.
    """

    def __init__(self, number: int, step: int = 100, problem: str = "") -> None:
        self.number, self.step, self.problem = number, step, problem
        self.takes_part, self.late = True, ""
        self.host, self.step_s = "a", 1.0
        self.usable: tuple[Profiler, ...] = (TORCH,)
        self.marks = [exact(step + n, 3 * (step + n), 3) for n in range(1, 1000)]
        self.proposed: list[Proposal] = []
        self.renumbered, self.asked_s = 0, 0.0
        self.opens: list[int] = []
        self.withdrawn: list[tuple[str, ...]] = []
        self.cancelled: list[int] = []
        self.superseded: set[int] = set()
        self.alone: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def _reply(self, problem: str = "") -> Reply:
        assert self.go_on.wait(patience_s())
        part = self.takes_part and not problem
        mark = self.marks.pop(0) if self.marks else None
        self.asked_s += 0.1
        reply = Reply(self.number, problem, part, self.step, self.step_s, at_s=self.asked_s)
        return replace(reply, host=self.host, mark=mark)

    def consider(self, proposal: Proposal) -> Reply:
        """Say whether it can."""
        assert proposal.number in {PROPOSAL.number, SECOND.number, 3}
        assert proposal.config == PROPOSAL.config
        self.proposed.append(proposal)
        if proposal.ranks:
            self.takes_part = self.number in RankSet.parse(proposal.ranks)
        would = proposal.profiler or self.usable[0]
        return replace(self._reply(self.problem), would=would, usable=self.usable)

    def where(self, number: int) -> Reply:
        """Say where it is."""
        del number
        return self._reply()

    def wait_no_more_with(self, superseded: Collection[tuple[int, int]]) -> None:
        """Note what."""
        self.superseded |= {one for low, high in superseded for one in range(low, high + 1)}

    def open_at(self, opening: Opening) -> Reply:
        """Note the step."""
        self.renumbered += opening.renumber.get(self.number, 0)
        if self.number not in opening.left_out and self.takes_part and not self.late:
            self.opens.append(opening.step)
        return self._reply(self.late)

    def withdraw(self, withdrawal: Withdrawal) -> Reply:
        """Note why."""
        self.withdrawn.append(withdrawal.reasons)
        return self._reply()

    def parting(self) -> dict[int, Reply]:
        """Say what became of the proposal, and of the one after it."""
        saved = Reply(self.number, outcome="saved", capture=f"of {self.number}")
        gone = replace(saved, outcome="not served", why="not served, the process ended")
        return {PROPOSAL.number: saved, PROPOSAL.number + 1: gone}

    def left_alone(self, why: str) -> None:
        """Note why."""
        self.alone.append(why)

    def cancel(self, cancellation: Cancellation) -> Reply:
        """Note it."""
        self.cancelled.append(cancellation.number)
        return self._reply()


class Time:
    """A clock that goes on only while somebody waits by it, and all who can have replied."""

    def __init__(self, all_have_replied: Callable[[], bool]) -> None:
        self.now_s, self._all_have_replied = 0.0, all_have_replied

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass, or the others run."""
        if self._all_have_replied():
            self.now_s += seconds
        else:
            threading.Event().wait(0.0005)


class Job:
    """A job of ranks, of which the first leads and the others listen."""

    def __init__(
        self, ranks: list[Rank], world_size: int | None = None, store: MemoryStore | None = None
    ) -> None:
        self.ranks, self.time = ranks, Time(self._all_have_replied)
        self.store = store or MemoryStore()
        self.speaker = Speaker(self.store, len(ranks), self.time, self.time.sleep)
        size = world_size or len(ranks)
        self.leader = Leader(self.speaker, ranks[0], size, self.time, self.time.pass_by)
        self.ended = threading.Event()
        self.said: list[str] = []
        self.threads = [threading.Thread(target=self._follow, args=(r,)) for r in ranks[1:]]
        for thread in self.threads:
            thread.start()
        while store and store.values.get("dynprof/joined", b"").count(b"\n") < len(ranks):
            threading.Event().wait(0.0005)  # they have joined the leader before
        self.speaker.lead("host:1")
        while len(self.speaker.listeners()) < len(ranks) - 1:
            threading.Event().wait(0.0005)

    def _all_have_replied(self) -> bool:
        place = int(self.store.values.get("dynprof/next", b"0")) - 1
        replies = self.store.values.get(f"dynprof/{place}/replies", b"").count(b"\n")
        return replies >= sum(rank.go_on.is_set() for rank in self.ranks[1:])

    def _follow(self, rank: Rank) -> None:
        rest, say = self.ended.wait, self.said.append
        listener = Listener(self.store, rank.number, len(self.ranks), 1, rest, say=say)
        Follower(listener, rank, self.ended.is_set).follow()

    def end(self) -> None:
        """Let all go."""
        self.ended.set()
        for rank in self.ranks:
            rank.go_on.set()
        for thread in self.threads:
            thread.join(patience_s())
            assert not thread.is_alive()


@contextlib.contextmanager
def job(*ranks: Rank, world_size: int | None = None) -> Iterator[Job]:
    """Run a job."""
    running = Job(list(ranks), world_size)
    try:
        yield running
    finally:
        running.end()


ALL = Terms(RankSet.parse("all"))


def falls_silent(rank: Rank, after: int) -> None:
    """Have a rank answer so many questions, and fall silent at the next, once."""
    answers, asked = rank.where, iter([*[False] * after, True])

    def where(number: int) -> Reply:
        if next(asked, False):
            rank.go_on.clear()
        return answers(number)

    rank.where = where  # type: ignore[method-assign]


def come_back(running: Job, rank: Rank) -> None:
    """Have a silent rank go on, and wait until it has replied to all, or joined anew."""
    rank.go_on.set()
    values, place = running.store.values, int(running.store.values[NEXT])
    joined = f'{{"rank":{rank.number},"place":{place}}}'.encode()
    replied = f'"rank":{rank.number},'.encode()
    while replied not in values.get(f"dynprof/{place - 1}/replies", b""):
        if joined in values[JOINED]:
            break
        threading.Event().wait(0.0005)


def test_all_open_at_one_step() -> None:
    """The step lies ahead of each of them, also of the one that is furthest."""
    ranks = [Rank(0, 7), Rank(1, 9), Rank(2, 8)]
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert made.step is not None
    assert made.step > 9
    assert [rank.opens for rank in ranks] == [[made.step]] * 3
    assert (made.ranks, made.left_out, made.reasons) == ((0, 1, 2), {}, ())


def test_one_that_cannot_keeps_all_from_it() -> None:
    """Nobody opens; each reason is said once, with the ranks that have it."""
    ranks = [Rank(0), Rank(1, problem="no room"), Rank(2, problem="no room"), Rank(3)]
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert (made.step, made.reasons) == (None, ("ranks 1 to 2: no room",))
    assert [rank.opens for rank in ranks] == [[]] * 4
    assert [rank.withdrawn for rank in ranks] == [[("ranks 1 to 2: no room",)]] * 4


def test_only_who_is_asked_for_opens() -> None:
    """The leader itself need not be."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    ranks[0].takes_part = ranks[2].takes_part = False
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, Terms(RankSet.parse("1")))
    assert (made.ranks, made.left_out) == ((1,), {})
    assert [len(rank.opens) for rank in ranks] == [0, 1, 0]


def test_a_rank_without_dynprof_is_named_and_not_waited_for() -> None:
    """It is given some seconds to join from the leader's begin on, and none after that."""
    with job(Rank(0), Rank(1), world_size=4) as running:
        running.leader.agree(PROPOSAL, ALL)
        assert JOIN_S < running.time.now_s < JOIN_S + 1
        made = running.leader.agree(PROPOSAL, ALL)
        assert running.time.now_s < JOIN_S + 2
    assert made.ranks == (0, 1)
    assert made.left_out == {2: NO_DYNPROF, 3: NO_DYNPROF}


def test_a_rank_that_does_not_answer_is_left_out_by_name() -> None:
    """After the patience; the next time it is not waited for, until it has come back."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        ranks[2].go_on.clear()
        made = running.leader.agree(PROPOSAL, ALL)
        assert (made.ranks, made.left_out) == ((0, 1), {2: SILENT})
        before_s = running.time.now_s
        made = running.leader.agree(PROPOSAL, ALL)
        assert (made.ranks, made.left_out) == ((0, 1), {2: SILENT})
        assert running.time.now_s - before_s < 1.0
        assert ranks[2].alone == []
        ranks[2].go_on.set()
        while running.speaker.away:
            running.leader.tell(Cancellation(9, "{}", 0.0))
            running.speaker.listeners()
        assert ranks[2].alone == ["the others have gone on, or begun anew"]
        made = running.leader.agree(PROPOSAL, ALL)
    assert (made.ranks, made.left_out) == ((0, 1, 2), {})
    assert ranks[2].opens[-1:] == [made.step]


def test_a_rank_that_falls_silent_amid_an_agreement_puts_the_step_off_no_further() -> None:
    """The others are waited for as long as it takes to tell them, not as it took to miss it."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    falls_silent(ranks[2], after=0)
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert (made.ranks, made.left_out) == ((0, 1), {2: SILENT})
    assert made.step is not None
    assert made.step < 110


def test_a_window_that_some_have_opened_is_waited_for_where_others_are_far_behind() -> None:
    """Those would supersede it, as they have not come to its step yet."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    outcomes = iter(["waiting", "open", "saving"])
    for rank, of in zip(ranks, (iter(()), iter(()), outcomes), strict=True):

        def where(
            number: int, before: Callable[[int], Reply] = rank.where, of: Iterator[str] = of
        ) -> Reply:
            return replace(before(number), outcome=next(of, "saved"))

        rank.where = where  # type: ignore[method-assign]
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL, earlier=[7])
    assert (made.ranks, next(outcomes, None)) == ((0, 1, 2), None)


def told_one_before(running: Job, outcomes: Iterator[str], *ranks: Rank) -> None:
    """Have all agree on a window, and the last rank tell what becomes of it from then on."""
    running.leader.agree(PROPOSAL, ALL)
    before = ranks[-1].where

    def where(number: int) -> Reply:
        of_earlier = number == PROPOSAL.number
        return replace(before(number), outcome=next(outcomes, "saved") if of_earlier else "")

    ranks[-1].where = where  # type: ignore[method-assign]
    for rank in ranks:
        rank.opens.clear()
        rank.step += 1  # it is that one's step


def test_a_window_that_opens_before_all_know_of_the_next_is_recorded_first() -> None:
    """Else the next one's step comes while that is still open, or saved."""
    ranks = [Rank(0), Rank(1)]
    outcomes = iter(["waiting", "waiting", "open", "saving"])
    with job(*ranks) as running:
        told_one_before(running, outcomes, *ranks)
        made = running.leader.agree(SECOND, ALL, earlier=[PROPOSAL.number])
    assert (made.ranks, next(outcomes, None)) == ((0, 1), None)
    assert ranks[0].opens == ranks[1].opens == [made.step]


def test_a_window_that_opens_much_later_is_superseded_at_once() -> None:
    """All know of the next one before its step comes."""
    ranks = [Rank(0), Rank(1)]
    with job(*ranks) as running:
        running.leader.agree(PROPOSAL, replace(ALL, start=5000))
        ranks[1].opens.clear()
        made = running.leader.agree(SECOND, ALL, earlier=[PROPOSAL.number])
    assert ranks[1].opens == [made.step]
    assert made.step is not None
    assert made.step < 5000


@pytest.mark.parametrize(("asked", "is_superseded"), [("0-1", True), ("2", False)])
def test_nobody_waits_with_a_window_that_others_have_superseded(
    asked: str, *, is_superseded: bool
) -> None:
    """Nor who is not asked for the next one; if that takes none of its ranks, all go on."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        ranks[2].takes_part = False
        running.leader.agree(PROPOSAL, Terms(RankSet.parse("0-1"), start=5000))
        for rank in ranks:
            rank.takes_part = rank.number in RankSet.parse(asked)
        running.leader.agree(SECOND, Terms(RankSet.parse(asked)), earlier=[PROPOSAL.number])
    assert [rank.superseded for rank in ranks] == [
        {PROPOSAL.number} if is_superseded else set()
    ] * 3


def test_of_several_windows_that_wait_each_is_superseded_of_which_a_rank_is_asked() -> None:
    """Not the newest alone; and who was left out of one has nothing to do with it."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    third = replace(PROPOSAL, number=3)

    def agree(proposal: Proposal, asked: str, start: int | None, *earlier: int) -> None:
        for rank in ranks:
            rank.takes_part = rank.number in RankSet.parse(asked)
        terms = Terms(RankSet.parse(asked), start=start)
        assert running.leader.agree(proposal, terms, earlier).step

    with job(*ranks) as running:
        agree(PROPOSAL, "0-1", 5000)
        agree(SECOND, "2", 5000, 1)
        agree(third, "1", None, 1, 2)
        assert all(rank.superseded == {1} for rank in ranks)
    with job(*ranks) as running:
        ranks[2].go_on.clear()
        agree(PROPOSAL, "0-2", 5000)
        ranks[2].go_on.set()
        while running.leader.roll_call(1).keys() != {0, 1, 2}:
            pass
        for rank in ranks:
            rank.superseded.clear()
        agree(SECOND, "2", None, 1)
        assert not any(rank.superseded for rank in ranks)


def test_a_rank_that_was_away_as_a_window_was_superseded_is_told_so() -> None:
    """With the next question."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        running.leader.agree(PROPOSAL, replace(ALL, start=5000))
        ranks[2].go_on.clear()
        made = running.leader.agree(SECOND, ALL, earlier=[PROPOSAL.number])
        assert made.left_out.keys() == {2}
        ranks[2].go_on.set()
        while running.leader.roll_call(SECOND.number).keys() != {0, 1, 2}:
            pass
    assert ranks[2].superseded == {PROPOSAL.number}


def test_a_window_that_opens_first_and_lasts_is_not_waited_for_for_ever() -> None:
    """Whose it is records it, and is left out of the next one by name."""
    ranks = [Rank(0), Rank(1)]
    with job(*ranks) as running:
        told_one_before(running, itertools.repeat("open"), *ranks)
        made = running.leader.agree(SECOND, ALL, earlier=[PROPOSAL.number])
        assert (made.ranks, ranks[0].opens, ranks[1].opens) == ((0,), [made.step], [])
        assert made.left_out == {1: "the window of request 1 opens first there"}
        alone = Terms(RankSet.parse("1"))
        ranks[0].takes_part = False
        made = running.leader.agree(PROPOSAL, alone, earlier=[PROPOSAL.number])
    assert (made.step, made.reasons) == (
        None,
        ("rank 1: the window of request 1 opens first there",),
    )


def test_the_window_of_ranks_that_are_not_asked_is_not_waited_for() -> None:
    """They record on, while others begin."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        told_one_before(running, itertools.repeat("open"), *ranks)
        ranks[2].takes_part = False
        made = running.leader.agree(SECOND, Terms(RankSet.parse("0-1")), [PROPOSAL.number])
    assert (made.ranks, made.reasons) == ((0, 1), ())


def test_a_rank_that_learns_too_late_is_named() -> None:
    """The others have begun by then; it says so itself."""
    ranks = [Rank(0), Rank(1)]
    ranks[1].late = "step 101 has begun already"
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert (made.ranks, made.left_out) == ((0,), {1: "step 101 has begun already"})


def test_a_step_that_comes_too_soon_is_refused_by_all() -> None:
    """With the rank that is past it."""
    ranks = [Rank(0, 3), Rank(1, 50)]
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, replace(ALL, start=20))
        assert made.reasons == ("step 20 has begun already: rank 1 is at step 50",)
        assert running.leader.agree(PROPOSAL, replace(ALL, start=200)).step == 200
    assert [rank.opens for rank in ranks] == [[200], [200]]


def test_what_needs_no_agreement_is_told_to_all() -> None:
    """A cancel, say."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        assert running.leader.tell(Cancellation(7, "{}", 0.0)).keys() == {0, 1, 2}
    assert [rank.cancelled for rank in ranks] == [[7]] * 3


def test_a_cancel_is_said_again_where_somebody_was_silent() -> None:
    """Else its window would go on there, though the operator has called it off."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    falls_silent(ranks[2], after=0)
    with job(*ranks) as running:
        running.leader.roll_call(1)
        assert running.leader.tell(Cancellation(7, "{}", 0.0)).keys() == {0, 1}
        for _ in range(KEPT + 1):
            running.leader.roll_call(1)
        assert [rank.cancelled for rank in ranks] == [[7], [7], []]
        come_back(running, ranks[2])
        for _ in range(3):
            assert running.leader.roll_call(1).keys() == {0, 1, 2}
    assert [rank.cancelled for rank in ranks] == [[7, 7], [7, 7], [7]]


@pytest.mark.parametrize("spoken", [0, 3])
def test_a_store_that_outlives_its_ranks_misleads_nobody(spoken: int) -> None:
    """As torchrun's does: those who come back before the leader join the one that was killed."""
    with job(Rank(0), Rank(1)) as before:
        for _ in range(spoken):
            before.leader.agree(PROPOSAL, ALL)
        before.ended.set()  # nobody says farewell
    ranks = [Rank(0), Rank(1)]
    running = Job(ranks, store=before.store)
    try:
        made = running.leader.agree(PROPOSAL, ALL)
        assert (made.ranks, made.left_out) == ((0, 1), {})
        assert [rank.opens for rank in ranks] == [[made.step]] * 2
    finally:
        running.end()


def test_who_parts_says_what_became_of_it_and_is_waited_for_no_more() -> None:
    """The leader hears it whenever it asks next; what it leaves in the store is little."""
    with job(Rank(0), Rank(1), Rank(2)) as running:
        assert running.leader.agree(PROPOSAL, ALL).ranks == (0, 1, 2)
        running.ended.set()
        for thread in running.threads:
            thread.join(patience_s())
        replies = running.leader.roll_call(PROPOSAL.number)
        assert {rank: (one.outcome, one.capture) for rank, one in replies.items() if rank} == {
            1: ("saved", "of 1"), 2: ("saved", "of 2"),
        }  # fmt: skip
        assert running.time.now_s < 5.0
        replies = running.leader.roll_call(PROPOSAL.number + 1)
        assert {one.outcome for rank, one in replies.items() if rank} == {"not served"}
        assert running.leader.roll_call(PROPOSAL.number + 2).keys() == {0}
        running.speaker.resign(Farewell())
        kept = {"dynprof/leader", "dynprof/next", "dynprof/name"}
        place = int(running.store.values["dynprof/next"]) - 1
        assert running.store.values.keys() == kept | {f"dynprof/{place}/said"}


def test_what_a_rank_said_as_it_parted_stands_where_it_has_joined_again() -> None:
    """As after ``dp.shutdown()`` and ``dp.init()``: it has its capture, and knows nothing of it."""
    ranks = [Rank(0), Rank(1)]
    with job(*ranks) as running:
        running.leader.agree(PROPOSAL, ALL)
        listener = Listener(running.store, 1, 2, 1, running.ended.wait)
        listener.part(ranks[1].parting())
        place = int(running.store.values[NEXT])
        running.store.append(JOINED, to_text(Joined(1, place)) + "\n")
        replies = running.leader.roll_call(PROPOSAL.number)
        assert (replies[1].outcome, replies[1].capture) == ("saved", "of 1")
        assert replies[1].step == ranks[1].step  # it answers
        last = running.leader.roll_call(PROPOSAL.number + 1)[1]
        assert (last.outcome, last.why) == ("not served", "not served, the process ended")
        assert running.leader.roll_call(PROPOSAL.number + 2)[1].outcome == ""
        waits = Parted(SECOND.number + 1, Reply(1, outcome="open"))
        running.store.append(JOINED, to_text(waits) + "\n" + to_text(Joined(1, place + 2)) + "\n")
        assert running.leader.roll_call(SECOND.number + 1)[1].outcome == ""


def test_who_joins_anew_is_not_waited_for_where_it_was_not_there() -> None:
    """It has left amid a question, and others reply to it; nor is it away from then on."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        running.leader.agree(PROPOSAL, ALL)
        falls_silent(ranks[1], after=0)
        answers, place = ranks[1].where, int(running.store.values[NEXT])
        left, joins = Parted(1, Reply(1)), Joined(1, place + 1)

        def where(number: int) -> Reply:
            running.store.append(JOINED, f"{to_text(left)}\n{to_text(joins)}\n")
            return answers(number)

        ranks[1].where = where  # type: ignore[method-assign]
        began_s = running.time.now_s
        assert running.leader.roll_call(PROPOSAL.number).keys() >= {0, 2}
        assert running.time.now_s < began_s + SOON_S / 2
        assert running.speaker.away == set()


@pytest.mark.parametrize("silent", [False, True])
def test_the_store_holds_little_however_much_is_said(silent: bool) -> None:
    """Of each rank that is away one message more."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        if silent:
            ranks[2].go_on.clear()
        for _ in range(30):
            running.leader.agree(PROPOSAL, ALL)
        assert len(running.store.values) <= 3 * KEPT + 4 + 2 * 3


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("one per host", {0, 2}),
        ("slowest", {3}),
        ("median", {1}),
        ("slowest and median, 2", {1, 2, 3}),
        ("every 2nd", {0, 2}),
        ("every 3rd, one per host", {0, 2, 3}),
    ],
)
def test_ranks_are_chosen_among_those_that_are_there(asked: str, expected: set[int]) -> None:
    """By their hosts, and by how long their steps take."""
    ranks = [Rank(0), Rank(1), Rank(2), Rank(3)]
    for rank, (host, step_s) in zip(ranks, [("a", 1), ("a", 2), ("b", 3), ("b", 4)], strict=True):
        rank.host, rank.step_s = host, step_s
        rank.takes_part = rank.number in expected
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, Terms(RankSet.parse(asked)))
    assert (set(made.ranks), made.left_out) == (expected, {})


@pytest.mark.parametrize("asked", ["0-2, slowest", "every 2nd, slowest"])
def test_who_is_named_beside_those_that_are_chosen_is_missed(asked: str) -> None:
    """It was asked for, and does not answer: the others' windows are not the whole."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    ranks[1].step_s = 9.0
    with job(*ranks) as running:
        ranks[2].go_on.clear()
        made = running.leader.agree(PROPOSAL, Terms(RankSet.parse(asked)))
    assert (made.ranks, made.left_out) == ((0, 1), {2: SILENT})


def test_the_slowest_of_ranks_that_know_no_pace_is_none() -> None:
    """All say so, and what to do."""
    ranks = [Rank(0), Rank(1)]
    ranks[0].step_s = ranks[1].step_s = None  # type: ignore[assignment]
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, Terms(RankSet.parse("slowest")))
    assert made.step is None
    assert "no rank knows yet how long its steps take" in made.reasons[0]
    assert [rank.withdrawn for rank in ranks] == [[made.reasons]] * 2


def test_what_some_can_only_serve_with_less_is_refused_by_all() -> None:
    """Each kind is named, with the ranks that have it."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    ranks[0].usable = (GPU,)
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert made.reasons == (
        "rank 0: it would record with torch (CPU, CUDA)",
        "ranks 1 to 2: it would record with torch (CPU)",
    )
    assert [rank.opens for rank in ranks] == [[]] * 3


def test_where_asked_all_record_what_each_of_them_can() -> None:
    """What the first prefers is looked for on all others."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    ranks[0].usable = (Profiler("npu", ("NPU",)), GPU)
    ranks[1].problem = ""
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, replace(ALL, downgrade=True))
    assert made.ranks == (0, 1, 2)
    assert [rank.proposed[-1].profiler for rank in ranks] == [TORCH] * 3


def test_where_nothing_is_common_to_all_nothing_is_recorded() -> None:
    """Also where less would do."""
    ranks = [Rank(0), Rank(1)]
    ranks[0].usable = (Profiler("npu", ("NPU",)),)
    with job(*ranks) as running:
        assert running.leader.agree(PROPOSAL, replace(ALL, downgrade=True)).step is None


def test_answers_that_come_at_once_tell_no_pace() -> None:
    """Whatever a rank says of its clock, a step is found."""
    ranks = [Rank(0, 90), Rank(1, 91)]
    ranks[1].asked_s = float("1e300")
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert made.step is not None
    assert made.step > 91


def test_a_step_that_a_number_divides() -> None:
    """The first that all can reach."""
    ranks = [Rank(0, 90), Rank(1, 99)]
    with job(*ranks) as running:
        assert running.leader.agree(PROPOSAL, replace(ALL, multiple=100)).step == 200
    ranks = [Rank(0, 90), Rank(1, 91)]
    with job(*ranks) as running:
        assert running.leader.agree(PROPOSAL, replace(ALL, multiple=100)).step == 100


def test_ranks_that_count_otherwise_take_the_leaders_numbers() -> None:
    """Where the collectives of the group tell by how much; then the step is one for all."""
    ranks = [Rank(0, 1000), Rank(1, 40)]
    ranks[0].marks = [
        exact(998, 2990, 3),
        exact(999, 2993, 3),
        exact(1000, 2996, 3),
    ]
    ranks[1].marks = [
        exact(38, 2990, 3),
        exact(39, 2993, 3),
        exact(40, 2996, 3),
    ]
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert made.step is not None
    assert made.step > 1000
    assert [rank.opens for rank in ranks] == [[made.step]] * 2
    assert ([rank.renumbered for rank in ranks], made.renumbered) == ([0, 960], {1: 960})
    assert made.remarks == (
        "rank 1 counted its steps otherwise; they are numbered as here now, +960",
    )


def test_a_rank_of_which_too_little_is_known_is_asked_more_often() -> None:
    """Until its marks tell how it counts; for a rank that has none that is tried once."""
    ranks = [Rank(0, 1000), Rank(1, 40), Rank(2, 1000)]
    ranks[1].marks = [exact(42, 3003, 3)] * 4 + [exact(42 + n, 3003 + 3 * n, 3) for n in range(60)]
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
        assert made.renumbered == {1: 959}
        assert 0.4 < running.time.now_s < 2
        before_s = running.time.now_s
        ranks[1].step, ranks[1].marks = 1000, []
        running.leader.agree(PROPOSAL, ALL)
        assert running.time.now_s - before_s < 2.5
        before_s = running.time.now_s
        running.leader.agree(PROPOSAL, ALL)
        assert running.time.now_s - before_s < 0.5


def test_where_nothing_tells_by_how_much_it_is_said() -> None:
    """Each opens at that number of its own."""
    ranks = [Rank(0, 1000), Rank(1, 40)]
    ranks[1].marks = []
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert made.renumbered == {}
    (remark,) = made.remarks
    assert remark == (
        "rank 1 is at step 40 where rank 0 is at 1,000: each opens at that number of its own, "
        "another iteration if they march together"
    )


@pytest.mark.parametrize("farewell", [True, False])
def test_a_rank_that_was_away_as_the_leader_changed_finds_the_new_one(
    farewell: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waits for is in the store no more, and nobody knows of it: it joins anew."""
    monkeypatch.setattr(listener, "LOST_S", 0.01)
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        ranks[2].go_on.clear()
        running.leader.agree(PROPOSAL, ALL)
        if farewell:
            running.speaker.resign(Farewell())
        speaker = Speaker(running.store, len(ranks), running.time, running.time.sleep)
        leader = Leader(speaker, ranks[0], 3, running.time, running.time.pass_by)
        speaker.lead("host:2")
        for _ in range(2 * KEPT):
            leader.tell(Cancellation(9, "{}", 0.0))
        ranks[2].go_on.set()
        while len(speaker.listeners()) < 2:
            threading.Event().wait(0.0005)
        made = leader.agree(PROPOSAL, ALL)
    assert (made.ranks, made.left_out) == ((0, 1, 2), {})


def test_a_silent_rank_that_comes_back_in_time_takes_part() -> None:
    """The others are free meanwhile to do what they are told; it is proposed to once more."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        ranks[2].go_on.clear()
        before_s = running.time.now_s
        pass_by = running.time.pass_by

        def back_after_a_while(seconds: float) -> None:
            pass_by(seconds)
            if running.time.now_s > before_s + 7.0 and not ranks[2].go_on.is_set():
                come_back(running, ranks[2])

        running.leader._sleep = back_after_a_while
        made = running.leader.agree(PROPOSAL, ALL)
    assert (made.ranks, made.left_out) == ((0, 1, 2), {})
    assert ranks[2].opens == [made.step]
    assert 7.0 < running.time.now_s - before_s < PROPOSAL.patience_s


def busy_for(rank: Rank, times: int) -> None:
    """Have a rank say so many times that it is not free yet."""
    where, consider = rank.where, rank.consider
    left = iter([*["its window before is not closed and saved"] * times, *[""] * 1000])
    rank.where = lambda number: replace(where(number), busy=next(left))  # type: ignore[method-assign]
    rank.consider = lambda proposal: replace(consider(proposal), busy=next(left))  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [0, 1])
def test_a_busy_rank_delays_the_start_and_past_the_patience_is_left_out(number: int) -> None:
    """By name, rank 0 as any other; what it says is what keeps it."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    busy_for(ranks[number], 5)
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
        assert (made.ranks, made.left_out) == ((0, 1, 2), {})
        assert running.time.now_s > 0.5
        busy_for(ranks[number], 1000)
        made = running.leader.agree(PROPOSAL, ALL)
    assert made.ranks == tuple(sorted({0, 1, 2} - {number}))
    assert made.left_out == {number: "its window before is not closed and saved"}
    assert len(ranks[number].opens) == 1


def test_what_is_asked_for_no_more_is_given_up_while_ranks_are_waited_for() -> None:
    """A newer edit, or a cancel; none hears of it as refused."""
    ranks = [Rank(0), Rank(1)]
    busy_for(ranks[1], 1000)

    def insist(waits: Mapping[int, str]) -> None:
        assert waits.keys() == {1}
        if running.time.now_s > 1.0:
            raise NoWindowError("superseded by request 2", outcome="superseded")

    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL, (), insist)
    assert (made.step, made.outcome, made.reasons) == (
        None, "superseded", ("superseded by request 2",),
    )  # fmt: skip
    assert made.took_s < 2.0
    assert [rank.withdrawn for rank in ranks] == [[("superseded by request 2",)]] * 2


def stands(rank: Rank, still_s: float, times: int, step_s: float = 1.0) -> None:
    """Have a rank say so many times for how long its step has been running."""
    where, consider = rank.where, rank.consider
    left = iter([*[still_s] * times, *[0.0] * 1000])

    def say(reply: Reply) -> Reply:
        return replace(reply, still_s=next(left), step_s=step_s)

    rank.where = lambda number: say(where(number))  # type: ignore[method-assign]
    rank.consider = lambda proposal: say(consider(proposal))  # type: ignore[method-assign]


def test_a_rank_that_stands_still_where_others_go_on_delays_the_start() -> None:
    """As in an evaluation that they do not wait for; past the patience it is left out by name."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    stands(ranks[1], 20.0, 5)
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
        assert (made.ranks, made.left_out) == ((0, 1, 2), {})
        assert running.time.now_s > 0.5
        stands(ranks[1], 20.0, 1000)
        made = running.leader.agree(PROPOSAL, ALL)
        assert (made.ranks, made.left_out) == (
            (0, 2), {1: "it has been in step 100 for 20 seconds"},
        )  # fmt: skip
        made = running.leader.agree(PROPOSAL, replace(ALL, start=500))
    assert (made.ranks, made.step) == ((0, 1, 2), 500)  # it has time to come to it


@pytest.mark.parametrize("step_s", [0.002, 60.0])
def test_where_all_stand_none_is_waited_for(step_s: float) -> None:
    """They march together, and go on together; a long step is no standing."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    for rank in ranks:
        stands(rank, 20.0 + rank.number * min(step_s, 1.0), 1000, step_s)
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert (made.ranks, made.left_out) == ((0, 1, 2), {})
    assert made.took_s < 1.0


def test_a_rank_on_which_dynprof_has_ended_is_named_so() -> None:
    """Nobody waits for it, from the leader's first moments on."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        listener = Listener(running.store, 2, 3, 1, running.ended.wait)
        listener.part(ranks[2].parting())
        made = running.leader.agree(replace(PROPOSAL, number=2), ALL)
    assert (made.ranks, made.left_out) == ((0, 1), {2: PARTED})
    assert made.took_s < 1.0


def test_a_leader_that_falls_silent_for_good_is_followed_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store may outlive it; should it go on all the same, it is followed again."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        running.leader.tell(Cancellation(9, "{}", 0.0))
        monkeypatch.setattr(listener, "DEAD_S", 0.01)
        while not (ranks[1].alone and ranks[2].alone):
            threading.Event().wait(0.0005)
        monkeypatch.setattr(listener, "DEAD_S", 1000.0)
        joined = running.store.values["dynprof/joined"].count(b"\n")
        running.speaker.say(Cancellation(9, "{}", 0.0))
        while running.store.values["dynprof/joined"].count(b"\n") < joined + 2:
            threading.Event().wait(0.0005)
        made = running.leader.agree(PROPOSAL, ALL)
    assert ranks[1].alone == ranks[2].alone == ["rank 0 has said nothing for 0.01 s"]
    assert (made.ranks, made.left_out) == ((0, 1, 2), {})


OTHERS = ("", "{}", "[" * 99, "\0", '{"kind": "farewell", "step": [')


def test_what_others_write_into_the_store_counts_as_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the leader says something, in its place, or as its number: then all goes on."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        store, leader = running.store, running.leader
        for text in OTHERS:
            place = int(store.values[NEXT])
            store.set(said_at(place), text)
            store.append(JOINED, f"{text}\n")
            threading.Event().wait(0.05)
            made = leader.agree(PROPOSAL, ALL)
            assert (made.ranks, made.reasons) == ((0, 1, 2), ())
            lost = said_at(int(store.values[NEXT]))

            def put(key: str, value: str, lost: str = lost, text: str = text) -> None:
                MemoryStore.set(running.store, key, text if key == lost else value)

            with monkeypatch.context() as patch:
                patch.setattr(store, "set", put)
                for rank in ranks[1:]:
                    rank.go_on.clear()  # so that time passes
                assert leader.tell(Cancellation(9, "{}", 0.0)).keys() == {0}
            for rank in ranks[1:]:
                rank.go_on.set()
            while leader.tell(Cancellation(9, "{}", 0.0)).keys() != {0, 1, 2}:
                threading.Event().wait(0.001)
    assert len(running.said) == 2
    assert "is no message of dynprof's: it counts as nothing" in running.said[0]


@pytest.mark.parametrize("number", [b"", b"x", b"-7", b"1e3", b"9" * 12, b"9" * 5000])
def test_who_joins_at_a_number_of_others_finds_the_leader(
    monkeypatch: pytest.MonkeyPatch, number: bytes
) -> None:
    """The leader says its own again with its next message."""
    monkeypatch.setattr(listener, "LOST_S", 0.01)
    ranks = [Rank(0), Rank(1)]
    with job(*ranks) as running:
        for _ in range(KEPT + 2):
            running.leader.tell(Cancellation(9, "{}", 0.0))
        store = running.store
        store.values[NEXT] = number
        late = Rank(2)
        thread = threading.Thread(target=running._follow, args=(late,))
        running.threads.append(thread)
        thread.start()
        while b'"rank":2' not in store.values[JOINED]:
            threading.Event().wait(0.001)
        ranks.append(late)
        running.ranks = ranks[:2]
        while running.leader.tell(Cancellation(9, "{}", 0.0)).keys() != {0, 1, 2}:
            threading.Event().wait(0.001)


@pytest.mark.parametrize("busy", [0, 3])
def test_a_rank_that_fails_at_a_question_is_left_out_with_its_reason(busy: int) -> None:
    """Whether others are waited for then or not: it hears that, and does not open."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    busy_for(ranks[1], busy)
    failed = Reply(2, "dynprof failed at it")
    ranks[2].where = lambda number: failed  # type: ignore[method-assign]  # noqa: ARG005
    with job(*ranks) as running:
        made = running.leader.agree(PROPOSAL, ALL)
    assert (made.ranks, made.left_out) == ((0, 1), {2: "dynprof failed at it"})
    assert (ranks[1].opens, ranks[2].opens) == ([made.step], [])


def test_a_rank_that_comes_back_while_another_is_waited_for_takes_part() -> None:
    """However long it had been silent before."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        ranks[1].go_on.clear()
        assert running.leader.agree(PROPOSAL, ALL).left_out == {1: SILENT}
        busy_for(ranks[2], 1000)
        began_s, where = running.time.now_s, ranks[1].where

        def of_what_it_knows(number: int) -> Reply:
            return replace(
                where(number), takes_part=number in [p.number for p in ranks[1].proposed]
            )

        ranks[1].where = of_what_it_knows  # type: ignore[method-assign]

        def meanwhile(waits: Mapping[int, str]) -> None:
            del waits
            if running.time.now_s > began_s + 2.0 and not ranks[1].go_on.is_set():
                come_back(running, ranks[1])
            if running.time.now_s > began_s + 4.0:
                busy_for(ranks[2], 0)

        made = running.leader.agree(SECOND, ALL, (), meanwhile)
    assert (made.ranks, made.left_out) == ((0, 1, 2), {})
    assert [rank.opens[-1:] for rank in ranks] == [[made.step]] * 3


def forgets_where_it_was_away(rank: Rank) -> None:
    """Have a rank that joins anew take part only in what is proposed from then on."""
    where, open_at, left_alone, forgotten = rank.where, rank.open_at, rank.left_alone, [0]

    def knows() -> bool:
        return len(rank.proposed) > forgotten[-1]

    def forget(why: str) -> None:
        forgotten.append(len(rank.proposed))
        left_alone(why)

    rank.left_alone = forget  # type: ignore[method-assign]
    rank.where = lambda number: replace(where(number), takes_part=knows())  # type: ignore[method-assign]
    rank.open_at = lambda opening: open_at(opening) if knows() else Reply(1)  # type: ignore[method-assign]


def test_a_rank_that_was_away_while_another_was_waited_for_is_proposed_to_again() -> None:
    """It had answered the proposal, and was told as it came back that the others have gone on."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        busy_for(ranks[2], 1000)
        falls_silent(ranks[1], after=1)
        forgets_where_it_was_away(ranks[1])

        def meanwhile(waits: Mapping[int, str]) -> None:
            del waits
            if running.time.now_s > 8.0:
                come_back(running, ranks[1])
            if running.time.now_s > 9.0:
                busy_for(ranks[2], 0)

        made = running.leader.agree(PROPOSAL, ALL, (), meanwhile)
    assert ranks[1].alone == ["the others have gone on, or begun anew"]
    assert (made.ranks, made.left_out) == ((0, 1, 2), {})
    assert [rank.opens for rank in ranks] == [[made.step]] * 3


def test_a_rank_that_was_away_while_a_window_was_recorded_first_is_proposed_to_again() -> None:
    """Else it would be taken to open, and know nothing of it."""
    ranks = [Rank(0), Rank(1), Rank(2)]
    with job(*ranks) as running:
        outcomes = ("saved" if ranks[1].alone else "open" for _ in itertools.count())
        told_one_before(running, outcomes, *ranks)
        falls_silent(ranks[1], after=5)
        forgets_where_it_was_away(ranks[1])
        began_s = running.time.now_s

        def meanwhile(waits: Mapping[int, str]) -> None:
            del waits
            if running.time.now_s > began_s + 8.0:
                come_back(running, ranks[1])

        made = running.leader.agree(SECOND, ALL, [PROPOSAL.number], meanwhile)
    assert ranks[1].alone
    assert (made.ranks, made.left_out) == ((0, 1, 2), {})
    assert ranks[1].opens == [made.step]


def test_a_rank_that_falls_silent_once_it_is_ready_may_come_back_in_time() -> None:
    """It is waited for as one that never answered."""
    ranks = [Rank(0), Rank(1)]
    falls_silent(ranks[1], after=0)
    with job(*ranks) as running:

        def meanwhile(waits: Mapping[int, str]) -> None:
            del waits
            come_back(running, ranks[1])

        made = running.leader.agree(PROPOSAL, ALL, (), meanwhile)
    assert (made.ranks, made.left_out) == ((0, 1), {})
    assert ranks[1].opens == [made.step]


def test_what_is_asked_for_no_more_is_given_up_while_a_window_is_recorded_first() -> None:
    """Else a cancel would be heard once the patience is over."""
    ranks = [Rank(0), Rank(1)]
    with job(*ranks) as running:
        told_one_before(running, itertools.repeat("open"), *ranks)
        began_s = running.time.now_s

        def meanwhile(waits: Mapping[int, str]) -> None:
            del waits
            if running.time.now_s > began_s + 1.0:
                raise NoWindowError("disarmed by request 3", outcome="disarmed")

        made = running.leader.agree(SECOND, ALL, [PROPOSAL.number], meanwhile)
    assert (made.step, made.outcome) == (None, "disarmed")
    assert made.took_s < 2.0


def test_the_leader_says_where_it_is_before_it_asks_the_others() -> None:
    """Who counts its steps otherwise is told by that: none is to look ahead of it who is not."""
    ranks = [Rank(0), Rank(1)]
    where, seen = ranks[0].where, list[bytes]()

    def note(number: int) -> Reply:
        seen.append(running.store.values[NEXT])
        return where(number)

    ranks[0].where = note  # type: ignore[method-assign]
    with job(*ranks) as running:
        before = running.store.values[NEXT]
        running.leader.roll_call(1)
        assert (seen, int(running.store.values[NEXT])) == ([before], int(before) + 1)


@pytest.mark.parametrize(("ranks", "pause_s"), [(2, 0.001), (64, 0.0064), (1000, 0.1)])
def test_who_has_replied_looks_for_the_next_message_after_a_pause(
    ranks: int, pause_s: float
) -> None:
    """It comes once all have replied; the more there are, the longer that takes."""
    store, done = MemoryStore(), list[object]()
    store.set(said_at(0), to_text(Farewell()))
    looks = store.compare_set

    def look(key: str, expected: str, desired: str) -> bytes:
        done.append(key)
        return looks(key, expected, desired)

    def rest(seconds: float) -> bool:
        done.append(seconds)
        return False

    store.compare_set = look  # type: ignore[method-assign]
    assert Listener(store, 1, ranks, 1, rest).hear() == Farewell()
    assert done == [pause_s, said_at(0)]


@pytest.mark.parametrize(("ranks", "slept_s"), [(2, 0.099), (500, 0.05), (1000, 0.0), (1001, 0.1)])
def test_the_leader_waits_between_two_questions_where_ranks_do_not(
    ranks: int, slept_s: float
) -> None:
    """Their answers lie a tenth of a second apart, by which their pace is told."""
    slept = list[float]()
    speaker = Speaker(MemoryStore(), ranks)
    leader = Leader(speaker, Rank(0), 1, sleep=slept.append)
    assert leader.agree(PROPOSAL, ALL).ranks == (0,)
    assert sum(slept) == pytest.approx(slept_s)


def test_what_all_have_replied_is_read_in_one_call() -> None:
    """And before that nothing: of a thousand ranks it is much."""
    store, read = MemoryStore(), list[bytes]()
    speaker = Speaker(store, 3, sleep=lambda _: store.append(at, text))
    place = speaker.say(Farewell())
    at, text = f"dynprof/{place}/replies", to_text(Reply(2)) + "\n"
    joined = [to_text(Joined(rank, place)) + "\n" for rank in (1, 2)]
    store.append(JOINED, "".join(joined))
    store.append(at, to_text(Reply(1)) + "\n")
    looks = store.compare_set

    def look(key: str, expected: str, desired: str) -> bytes:
        found = looks(key, expected, desired)
        if key == at:
            read.append(found)
        return found

    store.compare_set = look  # type: ignore[method-assign]
    assert speaker.replies(place, 5.0) == {1: Reply(1), 2: Reply(2)}
    assert [found.count(b"\n") for found in read] == [1, 2]
