"""The leader (rank 0): brings all ranks to open a window at one step, or at none.

A state machine without threads: it sends messages, receives news, and is called again at its
:attr:`Leader.deadline`. A proposal has these stages, in the order of the methods here:

    join -> choose -> propose -> wait for ranks that are not ready -> open, or withdraw
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as with_fields

from dynprof.ranks.agreement_rules import (
    LEADER,
    Agreement,
    chosen_ranks,
    common_profiler,
    counted_differently,
    far_apart,
    grouped_reasons,
    not_ready,
    recording_problems,
    start_step,
    without_common_numbers,
)
from dynprof.ranks.messages import (
    LEFT_GROUP,
    NO_DYNPROF,
    SILENT,
    GivenUp,
    Joined,
    LeaderStarted,
    LeaderStopped,
    Opening,
    Proposal,
    Question,
    RankLeft,
    Reply,
    Report,
    Withdrawal,
)
from dynprof.runtime.plural import listed_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dynprof.config import ProfilerConfig
    from dynprof.ranks.messages import Message, RankMessage
    from dynprof.ranks.record import JobWindows

REPLY_TIMEOUT_S = 5.0  # A live rank replies in this time, even while it holds Python's lock.
JOIN_S = 10.0  # Ranks may join this long after the leader began: scripts call init() seconds apart.
MIN_LEAD_S = 0.01  # A rank's thread may wait some 5 ms for Python's lock, twice.
LEAD_ROUNDS = 2  # The lead is this many times the time that all ranks took to reply.
SLOW_ROUND_S = 1.0  # A slower round predicts the next one badly; it is repeated once.
CUT_OFF = "no other rank does now; the connection to the job's store may be cut; save it again"
MAX_REPLY_AGE_S = 0.1  # Older replies do not tell well enough where the ranks are.
RECHECK_S = 0.1  # Interval of questions to ranks that do not know their step time yet.
DECIDE_S = 3.0
"""Ranks count collectives once a second; after two counts it is known which ranks step together.
Numbers of steps can be compared after two steps."""
OBSERVE_S, OBSERVE_STEPS = 1.0, 3  # The questions end after this time or as many steps.
WATCH_S, LONGEST_WATCH_S = 2.0, 30.0  # From news of a window to a question about it; doubles.
FINAL_WAIT_S, FINAL_WATCH_S = 15.0, 1.0  # At the end: wait for windows, interval of questions.


@dataclass
class _Round:
    """A message and the replies that it waits for."""

    place: int
    asked_s: float
    then: Callable[[], None]
    expected: set[int]


@dataclass
class _Current:
    """The proposal under way."""

    proposal: Proposal
    config: ProfilerConfig
    began_s: float
    until_s: float
    wanted: set[int]
    left_out: dict[int, str] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)
    first: dict[int, tuple[int, float]] = field(default_factory=dict)  # step, and when
    asked_s: float = 0.0
    answered_s: float = -math.inf
    waits: bool = False
    has_joined: bool = False  # whether a rank joined after the proposal
    was_slow: bool = False  # whether a slow round was repeated
    was_extended: bool = False  # whether the patience was extended for an earlier window

    @property
    def patience_s(self) -> float:
        return self.config.agreement.patience_s


class _NoWindowError(Exception):
    """No rank opens; the arguments are the reasons."""


class Leader:
    """One run of a leader.

    Args:
        send: Sends a message to the other ranks. Takes how many replies wake the leader, and
            returns the place of the message.
        answer: Gives the message to the leader's own rank.
        windows: Records the results of proposals and windows.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        world_size: int,
        name: str,
        send: Callable[[Message, int], int],
        answer: Callable[[Message, int], Reply],
        windows: JobWindows,
        clock: Callable[[], float],
    ) -> None:
        self._world_size, self._name = world_size, name
        self._send, self._answer = send, answer
        self._windows, self._clock = windows, clock
        self._joined: set[int] = set()
        self._parted: set[int] = set()
        self._silent: dict[int, float] = {}  # since when
        self._agreed_steps: dict[int, int] = {}  # announced start steps, by request number
        self._round: _Round | None = None
        self._current: _Current | None = None
        self._wake_s = math.inf
        self._began_s = clock()
        self._watch_s, self._pause_s = math.inf, WATCH_S
        self._end_s: float | None = None
        self._has_left = False
        self.newest = 0  # the highest request number of any rank

    def begin(self) -> None:
        """Ask the ranks to join."""
        self._send(LeaderStarted(self._name), 0)

    @property
    def others(self) -> set[int]:
        """The ranks that have joined and answer."""
        return self._joined - self._silent.keys()

    def refresh(self, reply: Reply) -> None:
        """Take the reply of the leader's own rank once it is ready."""
        if self._take(reply):
            self._go_on()

    @property
    def late_s(self) -> float:
        """Monotonic time from which on missing replies are late."""
        patience_s = self._current.patience_s if self._current else REPLY_TIMEOUT_S
        return self._round.asked_s + min(REPLY_TIMEOUT_S, patience_s) if self._round else math.inf

    @property
    def deadline(self) -> float:
        """Monotonic time of the next :meth:`tick`."""
        return min(self.late_s, self._wake_s, self._watch_s)

    @property
    def is_over(self) -> bool:
        """Whether the leader has nothing more to wait for at the end."""
        late = self._end_s is not None and self._clock() >= self._end_s
        return late or not self._windows.pending or self._windows.is_stalled

    # events

    def propose(self, proposal: Proposal, config: ProfilerConfig) -> None:
        """Start an agreement on a proposal; it supersedes the one under way."""
        self.give_up("superseded", f"superseded by request {proposal.number}")
        now_s, asked = self._clock(), config.selected_ranks
        wanted = {r for r in range(self._world_size) if asked.chosen or r in asked}
        self._current = _Current(
            proposal, config, now_s, now_s + config.agreement.patience_s, wanted
        )
        self._attempt(self._join)

    def give_up(self, outcome: GivenUp, why: str) -> None:
        """End the agreement under way, if any."""
        if self._current:
            self._withdraw((why,), outcome)

    def broadcast(self, message: Message) -> None:
        """Send all ranks a message that needs no agreement."""
        self._answer(message, self._send(message, 0))

    def receive(self, news: Iterable[RankMessage]) -> None:
        """Take the news of ranks."""
        changes = False
        for one in news:  # thousands at once, in a large job
            if not 0 < one.rank < self._world_size:
                continue
            self._silent.pop(one.rank, None)
            if isinstance(one, Report):
                self._learn(one)
            elif isinstance(one, Reply):
                changes |= self._take(one)
            else:
                self._join_or_leave(one)
                changes = True
        if changes:
            self._go_on()
        self._set_watch()  # a rank that was silent may have a pending window

    def tick(self) -> None:
        """Handle late replies and expired waits."""
        now_s = self._clock()
        if self._round and now_s >= self.late_s:
            missing = self._round.expected - {LEADER}
            self._silent |= dict.fromkeys(missing - self._silent.keys(), self._round.asked_s)
            self._windows.mark_lost(missing)
            self._finish_round()
        if now_s >= self._wake_s:
            self._wake_s = math.inf
            self._go_on()
        self._watch(now_s)

    def end(self) -> None:
        """Start no further agreement; wait up to 15 s for the results of windows."""
        self.give_up("refused", "the leader ends")
        self._end_s = self._clock() + FINAL_WAIT_S
        self._watch_s = self._clock()

    def leave(self) -> None:
        """Stop leading."""
        self._send(LeaderStopped(), 0)
        self._has_left = True

    # news of ranks

    def _note(self, report: Report) -> None:
        self.newest = max(self.newest, report.newest)
        self._windows.receive(report)

    def _learn(self, report: Report) -> None:
        self._pause_s = WATCH_S
        self._note(report)
        if self._current and self._current.waits:
            self._wake_s = min(self._wake_s, self._clock())

    def _take(self, reply: Reply) -> bool:
        """Take a reply; return whether it may change the agreement under way."""
        self._note(reply.report)
        current = self._current
        if current and reply.report.number == current.proposal.number:
            before = current.replies.get(reply.rank, reply)
            if (before.place, before.again) <= (reply.place, reply.again):
                current.replies[reply.rank] = with_fields(
                    reply,
                    problem=reply.problem or before.problem,
                    profiler=reply.profiler or before.profiler,
                    usable=reply.usable or before.usable,
                )
        if self._round and reply.place == self._round.place:
            if current and reply.report.number == current.proposal.number:
                current.answered_s = self._clock()
            self._round.expected.discard(reply.rank)
            if self._round.expected <= {LEADER}:
                self._finish_round()
                return False
        return bool(current and current.waits)

    def _join_or_leave(self, one: Joined | RankLeft) -> None:
        for report in one.reports:
            self._note(report)
        if isinstance(one, RankLeft):
            self._parted.add(one.rank)
            self._joined.discard(one.rank)
            if not self._has_left:
                self._windows.mark_lost([one.rank], LEFT_GROUP)
        else:
            self._parted.discard(one.rank)
            self._joined.add(one.rank)
            if self._current:
                self._current.has_joined |= one.rank in self._current.wanted
        if self._round:  # it has not received the question, or has forgotten it
            self._round.expected.discard(one.rank)
            if self._round.expected <= {LEADER}:
                self._finish_round()

    def _question(self, message: Proposal | Question, then: Callable[[], None]) -> None:
        """Send a message that all ranks reply to; call ``then`` once they have or are late."""
        current, others = self._current, self.others
        asked_s = self._clock()
        place = self._send(message, len(others))
        self._round = _Round(place, asked_s, then, {*others, LEADER})
        if current and current.proposal.number == message.number:
            current.asked_s = current.answered_s = asked_s
            current.waits = False
        own = self._answer(message, place)
        self._windows.receive(own.report)
        if current and own.report.number == current.proposal.number:
            current.replies[LEADER] = own
        if not others:
            self._finish_round()

    def _finish_round(self) -> None:
        ask, self._round, current = self._round, None, self._current
        self._set_watch()
        if current and current.has_joined and self._clock() < current.until_s:
            self._attempt(self._join)
        elif ask:
            ask.then()

    def _go_on(self) -> None:
        if (current := self._current) and self._round is None:
            waits = current.waits and not current.has_joined
            self._attempt(self._consider if waits else self._join)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except _NoWindowError as error:
            self._withdraw(error.args)

    # agreeing

    def _join(self) -> None:
        """Wait for ranks that have not joined, until ``JOIN_S`` after the leader began."""
        current = self._current_or_fail
        absent = current.wanted - {LEADER} - self._joined - self._parted
        if absent and self._clock() < self._began_s + JOIN_S:
            self._wake_s = self._began_s + JOIN_S
            return
        current.left_out, current.has_joined = self._absent(current.wanted), False
        if current.config.selected_ranks.chosen and not current.proposal.ranks:
            number = current.proposal.number
            self._question(Question(number), lambda: self._attempt(self._choose))
        else:
            self._propose()

    def _absent(self, wanted: set[int]) -> dict[int, str]:
        absent = sorted(wanted - {LEADER} - self._joined)
        return {rank: LEFT_GROUP if rank in self._parted else NO_DYNPROF for rank in absent}

    def _choose(self) -> None:
        """Choose ranks by their hosts and step times."""
        current = self._current_or_fail
        try:
            chosen = chosen_ranks(current.config.selected_ranks, current.replies, self._world_size)
        except ValueError as error:
            raise _NoWindowError(str(error)) from None
        current.proposal = with_fields(current.proposal, ranks=str(chosen))
        current.wanted = {rank for rank in range(self._world_size) if rank in chosen}
        current.left_out = self._absent(current.wanted)
        self._propose()

    def _propose(self) -> None:
        current = self._current_or_fail
        current.replies = {}
        self._question(current.proposal, lambda: self._attempt(self._check))

    def _check(self) -> None:
        """Propose a common profiler where a rank cannot record, if the request allows it."""
        current = self._current_or_fail
        problems = recording_problems(current.replies)
        if (
            problems
            and current.config.agreement.unable == "downgrade"
            and current.proposal.profiler is None
        ):
            said = [one for one in current.replies.values() if one.takes_part or one.problem]
            if less := common_profiler([one.usable for one in said]):
                current.proposal = with_fields(current.proposal, profiler=less)
                self._propose()
                return
        self._consider()

    def _consider(self) -> None:
        """Wait for ranks that are not ready; leave them out after the patience."""
        current, now_s = self._current_or_fail, self._clock()
        if problems := recording_problems(current.replies):
            raise _NoWindowError(*grouped_reasons(problems))
        wanted = current.wanted - current.left_out.keys()
        long_s = now_s - current.patience_s
        lost = {rank for rank, since_s in self._silent.items() if since_s <= long_s}
        silent = wanted & self._silent.keys()
        replies = {r: one for r, one in current.replies.items() if r not in silent}
        allows_long_step = current.config.named_step is not None
        waits = not_ready(replies, silent - lost, allows_long_step=allows_long_step)
        waits = {rank: why for rank, why in waits.items() if rank in wanted}
        if waits and now_s < current.until_s:
            self._wait(waits)
            return
        current.left_out |= waits
        for rank in wanted - waits.keys():
            if rank in silent or rank not in replies:
                current.left_out[rank] = LEFT_GROUP if rank in self._parted else SILENT
            elif not replies[rank].takes_part:
                current.left_out[rank] = "it takes no part"
        ready = {r: one for r, one in replies.items() if r in wanted and one.takes_part}
        ready = {r: one for r, one in ready.items() if r not in current.left_out}
        if self._asks_again(ready, now_s):
            return
        self._check_ready(ready)
        self._open(ready, now_s)

    def _check_ready(self, ready: Mapping[int, Reply]) -> None:
        """Refuse where no rank is ready, or only the leader though others had replied."""
        current = self._current_or_fail
        if not ready:
            raise _NoWindowError(*grouped_reasons(current.left_out) or ("no rank takes part",))
        replied = {r for r, one in current.replies.items() if one.takes_part}
        cut = sorted(replied & self._silent.keys() & current.left_out.keys())
        if cut and ready.keys() == {LEADER}:  # these refuse it too if they lost the store
            raise _NoWindowError(f"{listed_ranks(cut)} answered at first: {CUT_OFF}")

    def _wait(self, waits: Mapping[int, str]) -> None:
        current = self._current_or_fail
        current.waits, self._wake_s = True, current.until_s
        self._windows.wait_for(current.proposal.number, waits)

    def _asks_again(self, ready: dict[int, Reply], now_s: float) -> bool:
        """Return whether to wait for new replies: these are old, slow or lack a step time."""
        current = self._current_or_fail
        for rank, one in ready.items():
            step, at_s = current.first.setdefault(rank, (one.step, current.asked_s))
            seen_s, steps = current.asked_s - at_s, max(0, one.step - step)
            if one.fast_s is None and (seen_s >= OBSERVE_S or steps >= OBSERVE_STEPS):
                ready[rank] = with_fields(one, fast_s=seen_s / (steps + 1))
        replies = [ready[rank] for rank in sorted(ready)]
        unknown = any(one.fast_s is None for one in replies)
        if now_s < current.began_s + DECIDE_S:
            unknown |= bool(without_common_numbers(replies))
            if any(one.steps_together is None for one in replies):
                unknown |= bool(far_apart(replies, now_s - current.asked_s))
        if ready and unknown and now_s < current.answered_s + RECHECK_S:
            current.waits, self._wake_s = True, current.answered_s + RECHECK_S
            return True
        is_slow = current.answered_s - current.asked_s > SLOW_ROUND_S and not current.was_slow
        if ready and (unknown or is_slow or now_s > current.answered_s + MAX_REPLY_AGE_S):
            current.was_slow |= is_slow
            number = current.proposal.number
            self._question(Question(number), lambda: self._attempt(self._consider))
            return True
        return False

    def _open(self, ready: Mapping[int, Reply], now_s: float) -> None:
        """Announce the start step to all ranks."""
        current, number = self._current_or_fail, self._current_or_fail.proposal.number
        took_s = current.answered_s - current.asked_s
        config, replies = current.config, [ready[rank] for rank in sorted(ready)]
        apart_s = now_s - current.asked_s  # A rank that is ready again replies later than others.
        if otherwise := counted_differently(replies, apart_s):
            raise _NoWindowError(*grouped_reasons(otherwise))
        lead_s = max(MIN_LEAD_S, LEAD_ROUNDS * took_s) + now_s - current.asked_s
        try:
            step = start_step(replies, lead_s, config.named_step, config.multiple)
        except ValueError as error:
            raise _NoWindowError(f"step {config.named_step} has begun already: {error}") from None
        earlier = {n: ranks & ready.keys() for n, ranks in self._windows.pending.items()}
        earlier = {n: ranks for n, ranks in earlier.items() if ranks and n != number}
        first = {n: ranks for n, ranks in earlier.items() if self._agreed_steps.get(n, 0) <= step}
        if first:
            if not current.was_extended:
                current.was_extended, current.until_s = True, now_s + current.patience_s
            waits = {
                rank: f"the window of request {n} opens first there"
                for n, ranks in first.items()
                for rank in ranks
            }
            if now_s < current.until_s:
                self._wait(waits)
                return
            current.left_out |= waits
            self._consider()
            return
        self._agreed_steps = {
            n: self._agreed_steps[n] for n in self._windows.pending if n in self._agreed_steps
        }
        self._agreed_steps[number] = step
        left_out = dict(sorted(current.left_out.items()))
        self._current = None
        opening = Opening(number, step, left_out, tuple(earlier))
        own = self._answer(opening, self._send(opening, 0))
        if LEADER in ready and own.problem:
            left_out[LEADER] = own.problem
        ranks = tuple(sorted(ready.keys() - left_out.keys()))
        remarks = far_apart(replies, apart_s)
        self._conclude(Agreement(number, step, ranks, left_out, remarks=remarks), current)
        self._windows.receive(own.report)

    def _withdraw(self, reasons: tuple[str, ...], outcome: GivenUp = "refused") -> None:
        current = self._current_or_fail
        number, left_out = current.proposal.number, current.left_out
        self._round = self._current = None
        self.broadcast(Withdrawal(number, reasons, current.proposal.config, outcome))
        made = Agreement(number, None, (), left_out, reasons, outcome=outcome)
        self._conclude(made, current)

    def _conclude(self, made: Agreement, current: _Current) -> None:
        self._wake_s = math.inf
        made = replace(made, took_s=self._clock() - current.began_s)
        self._windows.conclude(made)
        self._pause_s = WATCH_S
        self._set_watch()

    @property
    def _current_or_fail(self) -> _Current:
        if self._current is None:
            raise _NoWindowError("the agreement has ended")
        return self._current

    # results of windows

    def _set_watch(self) -> None:
        pause_s = FINAL_WATCH_S if self._end_s is not None else self._pause_s
        watches = self._windows.pending and not self._has_left
        self._watch_s = self._clock() + pause_s if watches else math.inf

    def _watch(self, now_s: float) -> None:
        """Ask ranks with a pending window that have sent nothing for a while.

        A rank reports the end of its window by itself, but not if it died.
        """
        if now_s < self._watch_s:
            return
        self._watch_s = math.inf
        if self._round or (self._current and not self._current.waits):
            self._set_watch()
        elif pending := self._windows.pending:
            self._pause_s = min(2 * self._pause_s, LONGEST_WATCH_S)
            self._question(Question(min(pending)), self._go_on)
