"""A job in virtual time: a real leader, and ranks that follow by the protocol.

These ranks are a second implementation of the protocol, in place of ``Member``. They show the
leader's decisions. test_member.py tests the real ``Member``.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from dynprof.config import ProfilerConfig, RankSet
from dynprof.journal.edit_outcomes import IN_PROGRESS
from dynprof.ranks.leader import Leader
from dynprof.ranks.messages import (
    Cancellation,
    Joined,
    LeaderStarted,
    LeaderStopped,
    Opening,
    Profiler,
    Proposal,
    Question,
    RankLeft,
    Reply,
    Report,
    Withdrawal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dynprof.ranks.agreement_rules import Agreement
    from dynprof.ranks.job_windows import JobWindows
    from dynprof.ranks.messages import Message, RankMessage

PLAIN = Profiler("torch", ("CPU", "CUDA"))


def config_of(
    ranks: str = "all",
    start: int | str | None = None,
    patience_s: float = 30.0,
    downgrade: bool = False,
) -> ProfilerConfig:
    """Return a config that requests a window of these ranks."""
    rules = {"patience_s": patience_s, "unable": "downgrade" if downgrade else "refuse"}
    asked = {"ranks": ranks, "start_step": start or 0, "agreement": rules}
    return ProfilerConfig.model_validate(asked)


@dataclass
class Rank:
    """A rank whose steps advance with virtual time, except while it is stopped."""

    number: int
    step_s: float | None = 0.01
    is_new: bool = False  # whether it does not know the duration of its steps yet
    ahead: int = 0  # the difference of its step numbers to those of rank 0
    runs: bool = True  # whether it runs dynprof
    problem: str = ""
    host: str = "node0"
    busy_until_s: float = -1.0  # the end of the save of an earlier window
    usable: tuple[Profiler, ...] = (PLAIN,)
    steps_together: bool | None = False
    has_own_numbers: bool = False
    is_dead: bool = False
    recorded: list[tuple[int, int]] = field(default_factory=list)  # number and first step
    waiting: tuple[int, int] | None = None
    proposed: Proposal | None = None
    outcomes: dict[int, str] = field(default_factory=dict)
    stopped: list[tuple[Message, int]] | None = None
    still_since_s: float | None = None
    lost_s: float = 0.0
    hears_from: int = 0
    place: int = 0  # of the last message


class Records:
    """The leader's notes, as in :class:`dynprof.ranks.job_windows.JobWindows`."""

    def __init__(self) -> None:
        self.told: dict[int, dict[int, str]] = {}
        self.gone: dict[int, set[int]] = {}
        self.made: dict[int, Agreement] = {}
        self.settled: list[Agreement] = []
        self.waits: dict[int, dict[int, str]] = {}

    @property
    def pending(self) -> dict[int, set[int]]:
        found = {}
        for number, made in self.made.items():
            told, gone = self.told.get(number, {}), self.gone.get(number, set())
            ranks = {r for r in made.ranks if told.get(r, "waiting") in IN_PROGRESS} - gone
            if ranks:
                found[number] = ranks
        return found

    is_stalled = False

    def receive(self, report: Report) -> None:
        for gone in self.gone.values():
            gone.discard(report.rank)
        if report.number and report.outcome:
            self.told.setdefault(report.number, {})[report.rank] = report.outcome

    def mark_lost(self, ranks: Iterable[int], _why: str = "") -> None:
        for number in self.pending:
            self.gone.setdefault(number, set()).update(ranks)

    def wait_for(self, number: int, ranks: Mapping[int, str]) -> None:
        self.waits[number] = dict(ranks)

    def conclude(self, made: Agreement) -> None:
        self.made[made.number] = made
        self.settled.append(made)


class Job:
    """Ranks with their leader.

    Args:
        ranks: All ranks, in order.
        delay_s: Returns the delay of the next message.
    """

    def __init__(self, ranks: list[Rank], delay_s: Callable[[], float] = lambda: 0.001) -> None:
        self.ranks, self._delay_s = ranks, delay_s
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order, self._places = itertools.count(), itertools.count()
        self._arrives_s: dict[int, float] = {}  # to a rank, or from it
        self.said: list[Message] = []
        self.records = Records()
        self.made = self.records.settled
        mine, records = functools.partial(self._answer, ranks[0]), cast("JobWindows", self.records)
        self.leader = Leader(len(ranks), "rank 0", self._say, mine, records, lambda: self.now_s)
        self.leader.begin()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until_s = self.now_s + seconds
        while True:
            due_s = self._due[0][0] if self._due else math.inf
            next_s = min(due_s, max(self.leader.deadline, self.now_s))
            if next_s > until_s:
                break
            self.now_s = max(self.now_s, next_s)
            if due_s <= self.now_s:
                heapq.heappop(self._due)[2]()
            else:
                before_s = self.leader.deadline
                self.leader.tick()
                if self.leader.deadline <= self.now_s and before_s == self.leader.deadline:
                    self.now_s += 1e-6
        self.now_s = until_s

    def arm(self, number: int, ranks: str = "all", **terms: object) -> Agreement:
        """Propose a window, run for a while, and return the result."""
        self.propose(number, ranks, **terms)
        self.run(1.0)
        return next(one for one in self.made if one.number == number)

    def propose(self, number: int, ranks: str = "all", **terms: object) -> None:
        self.leader.propose(Proposal(number, ranks, 0.0), config_of(ranks, **terms))  # type: ignore[arg-type]

    def stop(self, rank: int) -> None:
        """Stop the process of a rank."""
        self.ranks[rank].stopped = []

    def go_on(self, rank: int) -> None:
        """Let it continue, with the messages that it has missed."""
        missed, self.ranks[rank].stopped = self.ranks[rank].stopped, None
        for message, place in missed or ():
            self._hear(self.ranks[rank], message, place)

    def lose_store(self, rank: int) -> None:
        """Make a rank lose the store, refuse the proposal, and join again."""
        one = self.ranks[rank]
        if one.is_dead or one.stopped is not None:
            return
        if one.proposed:
            one.outcomes[one.proposed.number], one.proposed = "refused", None
        one.hears_from = next(self._places)  # messages in transit to it are lost
        self._tell(Joined(rank))

    def stand(self, rank: int) -> None:
        """Keep a rank in its step."""
        self.ranks[rank].still_since_s = self.now_s

    def move(self, rank: int) -> None:
        """End that step; the rank reports it, because it was in it for long."""
        one = self.ranks[rank]
        one.lost_s += self.now_s - (one.still_since_s or self.now_s)
        one.still_since_s = None
        if one.proposed:
            reply = self._reply(one, one.proposed.number, one.place, takes_part=True)
            self._tell(reply) if rank else self.leader.refresh(reply)

    def step(self, rank: Rank) -> int:
        """Return the number of a rank's present step."""
        now_s = self.now_s if rank.still_since_s is None else rank.still_since_s
        return int((now_s - rank.lost_s) / (rank.step_s or 1.0)) + rank.ahead

    def _later(self, action: Callable[[], object], seconds: float) -> None:
        self._at(self.now_s + seconds, action)

    def _at(self, moment_s: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._due, (moment_s, next(self._order), action))

    def _arrives(self, way: int) -> float:
        """Return a message's arrival time; messages keep their order, as in the store's log."""
        arrives_s = max(self.now_s + self._delay_s(), self._arrives_s.get(way, 0.0))
        self._arrives_s[way] = arrives_s
        return arrives_s

    def _say(self, message: Message, _expect: int) -> int:
        place = next(self._places)
        self.said.append(message)
        for rank in self.ranks[1:]:
            hear = functools.partial(self._hear, rank, message, place)
            self._at(self._arrives(rank.number), hear)
        return place

    def _hear(self, rank: Rank, message: Message, place: int) -> None:
        if rank.is_dead or not rank.runs or place < rank.hears_from:
            return
        if rank.stopped is not None:
            rank.stopped.append((message, place))
        elif isinstance(message, LeaderStarted):
            self._tell(Joined(rank.number))
        elif isinstance(message, LeaderStopped):
            self._tell(RankLeft(rank.number))
        else:
            reply = self._answer(rank, message, place)
            if isinstance(message, (Proposal, Question)):
                self._tell(reply)

    def _tell(self, news: RankMessage) -> None:
        self._at(self._arrives(-news.rank), lambda: self.leader.receive([news]))

    def _answer(self, rank: Rank, message: Message, place: int) -> Reply:
        number, problem, part = getattr(message, "number", 0), "", False
        rank.place = place
        if isinstance(message, Proposal):
            rank.proposed, problem = message, rank.problem
            part = not problem and rank.number in RankSet.parse(message.ranks or message.config)
        elif isinstance(message, Opening):
            self._open(rank, message)
        elif isinstance(message, Withdrawal):
            if rank.proposed and rank.proposed.number == number:
                rank.outcomes[number], rank.proposed = message.outcome, None
        elif isinstance(message, Cancellation) and rank.waiting:
            rank.outcomes[rank.waiting[0]], rank.waiting = "cancelled", None
        elif isinstance(message, Question):
            part = rank.proposed is not None
        return self._reply(rank, number, place, problem, takes_part=part)

    def _reply(
        self, rank: Rank, number: int, place: int, problem: str = "", *, takes_part: bool = False
    ) -> Reply:
        still_s = 0.0 if rank.still_since_s is None else self.now_s - rank.still_since_s
        outcome = rank.outcomes.get(number, "")
        usable = rank.usable
        if rank.proposed and rank.proposed.profiler:
            usable = (rank.proposed.profiler,)
        return Reply(
            rank=rank.number,
            place=place,
            report=Report(
                rank.number, number, rank.host, outcome=outcome, still_s=still_s, step_s=rank.step_s
            ),
            problem=problem,
            takes_part=takes_part,
            busy="it saves" if takes_part and self.now_s < rank.busy_until_s else "",
            step=self.step(rank),
            fast_s=None if rank.is_new else rank.step_s,
            steps_together=rank.steps_together,
            has_own_numbers=rank.has_own_numbers,
            profiler=usable[0] if takes_part else None,
            usable=rank.usable,
        )

    def _open(self, rank: Rank, opening: Opening) -> None:
        if rank.waiting and rank.waiting[0] in opening.superseded:
            rank.outcomes[rank.waiting[0]], rank.waiting = "superseded", None
        asked, rank.proposed = rank.proposed, None
        if asked is None or asked.number != opening.number:
            return
        named = RankSet.parse(asked.ranks or asked.config)
        if rank.number in opening.left_out or rank.number not in named:
            return
        if self.step(rank) >= opening.step:
            self._end(rank, opening.number, "refused")
            return
        rank.waiting = opening.number, opening.step
        rank.outcomes[opening.number] = "waiting"
        self._record_when_due(rank, opening.number, opening.step)

    def _record_when_due(self, rank: Rank, number: int, step: int) -> None:
        if rank.waiting != (number, step) or rank.is_dead:
            return
        if self.step(rank) < step or rank.stopped is not None:
            steps = max(1, step - self.step(rank))
            wait_s = min(60.0, steps * (rank.step_s or 1.0))
            self._later(lambda: self._record_when_due(rank, number, step), wait_s)
            return
        rank.waiting = None
        rank.recorded.append((number, step))
        self._end(rank, number, "saved")

    def _end(self, rank: Rank, number: int, outcome: str) -> None:
        rank.outcomes[number] = outcome
        report = Report(rank.number, number, rank.host, outcome=outcome)
        if rank.number:
            self._tell(report)
        else:
            self.records.receive(report)
