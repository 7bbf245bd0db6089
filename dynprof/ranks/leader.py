"""The leader (rank 0): brings all ranks to open a window at one step, or at none.

A state machine without threads: it sends messages, receives news, and is called again at its
:attr:`Leader.deadline`. After each of them it does what the proposal under way lacks next:

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
    Profiler,
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
    from dynprof.ranks.job_windows import JobWindows
    from dynprof.ranks.messages import Message, RankMessage

REPLY_TIMEOUT_S = 5.0  # A live rank replies in this time, even while it holds the GIL.
JOIN_S = 10.0  # Ranks may join this long after the leader began: scripts call init() seconds apart.
MIN_LEAD_S = 0.01  # A rank's thread may wait some 5 ms for the GIL, twice.
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
    """A message, and the ranks that have not replied to it yet."""

    place: int
    asked_s: float
    expected: set[int]


@dataclass
class _Current:
    """The proposal under way."""

    proposal: Proposal
    config: ProfilerConfig
    began_s: float
    until_s: float  # the end of the patience
    wanted: set[int]
    is_sent: bool = False  # whether all ranks that have joined were asked
    left_out: dict[int, str] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)
    first: dict[int, tuple[int, float]] = field(default_factory=dict)  # step, and when
    asked_s: float = 0.0
    answered_s: float = -math.inf
    was_slow: bool = False  # whether a slow round was repeated

    @property
    def number(self) -> int:
        return self.proposal.number


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
        self._round: _Round | None = None
        self._current: _Current | None = None
        self._began_s = clock()
        self._wake_s = self._watch_s = math.inf
        self._pause_s = WATCH_S
        self._end_s: float | None = None
        self._has_left = False

    def begin(self) -> None:
        """Ask the ranks to join."""
        self._send(LeaderStarted(self._name), 0)

    @property
    def others(self) -> set[int]:
        """The ranks that have joined and answer."""
        return self._joined - self._silent.keys()

    @property
    def late_s(self) -> float:
        """Monotonic time from which on missing replies are late."""
        if self._round is None:
            return math.inf
        current = self._current
        patience_s = current.config.agreement.patience_s if current else math.inf
        return self._round.asked_s + min(REPLY_TIMEOUT_S, patience_s)

    @property
    def deadline(self) -> float:
        """Monotonic time of the next :meth:`tick`."""
        return min(self.late_s, self._wake_s, self._watch_s)

    @property
    def is_over(self) -> bool:
        """Whether the leader has nothing more to wait for at the end."""
        is_late = self._end_s is not None and self._clock() >= self._end_s
        return is_late or not self._windows.pending or self._windows.is_stalled

    # events

    def propose(self, proposal: Proposal, config: ProfilerConfig) -> None:
        """Start an agreement on a proposal; it supersedes the one under way."""
        self.give_up("superseded", f"superseded by request {proposal.number}")
        asked = config.selected_ranks
        wanted = {r for r in range(self._world_size) if asked.chosen or r in asked}
        now_s = self._clock()
        until_s = now_s + config.agreement.patience_s
        self._current = _Current(proposal, config, now_s, until_s, wanted)
        self._round = None  # a question about another window does not delay it
        self._go_on()

    def give_up(self, outcome: GivenUp, why: str) -> None:
        """End the agreement under way, if any."""
        if self._current:
            self._withdraw(self._current, (why,), outcome)

    def broadcast(self, message: Message) -> None:
        """Send all ranks a message that needs no agreement."""
        self._answer(message, self._send(message, 0))

    def receive(self, news: Iterable[RankMessage]) -> None:
        """Take the news of ranks."""
        for one in news:  # thousands at once, in a large job
            if not 0 < one.rank < self._world_size:
                continue
            self._silent.pop(one.rank, None)
            if isinstance(one, Report):
                self._pause_s = WATCH_S
                self._windows.receive(one)
            elif isinstance(one, Reply):
                self._take(one)
            else:
                self._join_or_leave(one)
        self._go_on()
        self._set_watch()  # a rank that was silent may have a pending window

    def refresh(self, reply: Reply) -> None:
        """Take the reply of the leader's own rank once it is ready."""
        self._take(reply)
        self._go_on()

    def tick(self) -> None:
        """Handle late replies and expired waits."""
        now_s = self._clock()
        if self._round and now_s >= self.late_s:
            missing, asked_s = self._round.expected, self._round.asked_s
            self._silent |= dict.fromkeys(missing - self._silent.keys(), asked_s)
            self._windows.mark_lost(missing)
            self._round = None
            self._set_watch()
        if now_s >= self._wake_s:
            self._wake_s = math.inf
        self._go_on()
        if now_s >= self._watch_s:
            self._watch()

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

    def _take(self, reply: Reply) -> None:
        self._windows.receive(reply.report)
        current, asked = self._current, self._round
        is_asked = asked is not None and reply.place == asked.place
        if current and reply.report.number == current.number:
            before = current.replies.get(reply.rank, reply)
            if (before.place, before.again) <= (reply.place, reply.again):
                current.replies[reply.rank] = reply
            if is_asked:
                current.answered_s = self._clock()
        if asked and is_asked:
            asked.expected.discard(reply.rank)

    def _join_or_leave(self, one: Joined | RankLeft) -> None:
        for report in one.reports:
            self._windows.receive(report)
        if isinstance(one, RankLeft):
            self._parted.add(one.rank)
            self._joined.discard(one.rank)
            if not self._has_left:
                self._windows.mark_lost([one.rank], LEFT_GROUP)
        else:
            self._parted.discard(one.rank)
            self._joined.add(one.rank)
            current = self._current
            if current and one.rank in current.wanted and self._clock() < current.until_s:
                current.is_sent, current.replies = False, {}
        if self._round:  # it has not received the question, or has forgotten it
            self._round.expected.discard(one.rank)

    def _ask(self, message: Proposal | Question) -> None:
        """Send a message that all ranks reply to."""
        current, others, asked_s = self._current, self.others, self._clock()
        place = self._send(message, len(others))
        self._round = _Round(place, asked_s, others)
        if current and message.number == current.number:
            current.asked_s = current.answered_s = asked_s
        self._take(self._answer(message, place))

    # agreeing

    def _go_on(self) -> None:
        """Do what the proposal under way lacks, until it has to wait."""
        try:
            while not (self._round and self._round.expected):
                self._round = None
                if self._current is None or not self._advance(self._current):
                    return
        except _NoWindowError as error:
            if self._current:
                self._withdraw(self._current, error.args)

    def _advance(self, current: _Current) -> bool:
        """Do what a proposal lacks next; return False if it waits for time or for news."""
        if not current.is_sent:
            return self._join(current)
        problems = recording_problems(current.replies)
        if problems and (less := self._common_profiler(current)):
            self._propose(current, profiler=less)
            return True
        if problems:
            raise _NoWindowError(*grouped_reasons(problems))
        ready = self._ready(current)
        return ready is not None and self._ask_or_open(current, ready)

    def _join(self, current: _Current) -> bool:
        """Wait for ranks that have not joined, until ``JOIN_S`` after the leader began."""
        absent = current.wanted - {LEADER} - self._joined - self._parted
        if absent and self._clock() < self._began_s + JOIN_S:
            self._wake_s = self._began_s + JOIN_S
            return False
        asked, ranks = current.config.selected_ranks, current.proposal.ranks
        if asked.chosen and not ranks:
            if not current.replies:  # choose by hosts and step times
                self._ask(Question(current.number))
                return True
            try:
                chosen = chosen_ranks(asked, current.replies, self._world_size)
            except ValueError as error:
                raise _NoWindowError(str(error)) from None
            ranks = str(chosen)
            current.wanted = {rank for rank in range(self._world_size) if rank in chosen}
        current.left_out = {
            rank: LEFT_GROUP if rank in self._parted else NO_DYNPROF
            for rank in sorted(current.wanted - {LEADER} - self._joined)
        }
        self._propose(current, ranks=ranks)
        return True

    def _propose(self, current: _Current, **terms: object) -> None:
        current.proposal = with_fields(current.proposal, **terms)
        current.is_sent, current.replies = True, {}
        self._ask(current.proposal)

    def _common_profiler(self, current: _Current) -> Profiler | None:
        """Return a profiler for all ranks, where a rank cannot record with its own."""
        allows = current.config.agreement.unable == "downgrade"
        if not allows or current.proposal.profiler:
            return None
        said = [one for one in current.replies.values() if one.takes_part or one.problem]
        return common_profiler([one.usable for one in said])

    def _ready(self, current: _Current) -> dict[int, Reply] | None:
        """Return the ranks that are ready, or None to wait; leave others out after the patience."""
        now_s, wanted = self._clock(), current.wanted - current.left_out.keys()
        long_s = current.config.agreement.patience_s
        lost = {rank for rank, since_s in self._silent.items() if now_s - since_s >= long_s}
        silent = wanted & self._silent.keys()
        replies = {r: one for r, one in current.replies.items() if r not in silent}
        allows_long_step = current.config.named_step is not None
        waits = not_ready(replies, silent - lost, allows_long_step=allows_long_step)
        waits = {rank: why for rank, why in waits.items() if rank in wanted}
        if waits and now_s < current.until_s:
            self._wake_s = current.until_s
            self._windows.wait_for(current.number, waits)
            return None
        current.left_out |= waits
        for rank in wanted - waits.keys():
            if rank not in replies:
                current.left_out[rank] = LEFT_GROUP if rank in self._parted else SILENT
            elif not replies[rank].takes_part:
                current.left_out[rank] = "it takes no part"
        return {r: replies[r] for r in sorted(wanted - current.left_out.keys())}

    def _ask_or_open(self, current: _Current, ready: dict[int, Reply]) -> bool:
        """Open, or ask again where the replies are old, slow or lack a step time."""
        now_s = self._clock()
        unknown = self._lacks_times(current, ready) if ready else False
        if unknown and now_s < current.answered_s + RECHECK_S:
            self._wake_s = current.answered_s + RECHECK_S
            return False
        is_slow = current.answered_s - current.asked_s > SLOW_ROUND_S and not current.was_slow
        is_old = now_s > current.answered_s + MAX_REPLY_AGE_S
        if ready and (unknown or is_slow or is_old):
            current.was_slow |= is_slow
            self._ask(Question(current.number))
        else:
            self._check_ready(current, ready)
            self._open(current, ready)
        return True

    def _lacks_times(self, current: _Current, ready: dict[int, Reply]) -> bool:
        """Return whether step times or the relation of step numbers are not known yet.

        The step time of a rank that does not know it is the observed one.
        """
        now_s = self._clock()
        for rank, one in ready.items():
            step, at_s = current.first.setdefault(rank, (one.step, current.asked_s))
            seen_s, steps = current.asked_s - at_s, max(0, one.step - step)
            if one.fast_s is None and (seen_s >= OBSERVE_S or steps >= OBSERVE_STEPS):
                ready[rank] = with_fields(one, fast_s=seen_s / (steps + 1))
        replies = list(ready.values())
        if any(one.fast_s is None for one in replies):
            return True
        if now_s >= current.began_s + DECIDE_S:
            return False
        are_unknown = any(one.steps_together is None for one in replies)
        apart = are_unknown and far_apart(replies, now_s - current.asked_s)
        return bool(apart or without_common_numbers(replies))

    def _check_ready(self, current: _Current, ready: Mapping[int, Reply]) -> None:
        """Refuse where no rank is ready, or only the leader though others had replied."""
        if not ready:
            raise _NoWindowError(*grouped_reasons(current.left_out) or ("no rank takes part",))
        replied = {r for r, one in current.replies.items() if one.takes_part}
        cut = sorted(replied & self._silent.keys() & current.left_out.keys())
        if cut and ready.keys() == {LEADER}:  # these refuse it too if they lost the store
            raise _NoWindowError(f"{listed_ranks(cut)} answered at first: {CUT_OFF}")

    def _open(self, current: _Current, ready: Mapping[int, Reply]) -> None:
        """Announce the start step to all ranks."""
        config, number, replies = current.config, current.number, list(ready.values())
        # A rank that is ready again replies later than others.
        apart_s = self._clock() - current.asked_s
        if otherwise := counted_differently(replies, apart_s):
            raise _NoWindowError(*grouped_reasons(otherwise))
        took_s = current.answered_s - current.asked_s
        lead_s = max(MIN_LEAD_S, LEAD_ROUNDS * took_s) + apart_s
        try:
            step = start_step(replies, lead_s, config.named_step, config.multiple)
        except ValueError as error:
            raise _NoWindowError(f"step {config.named_step} has begun already: {error}") from None
        pending = self._windows.pending.items()
        superseded = tuple(n for n, ranks in pending if n != number and ranks & ready.keys())
        left_out = dict(sorted(current.left_out.items()))
        self._current = None
        opening = Opening(number, step, left_out, superseded)
        own = self._answer(opening, self._send(opening, 0))
        if LEADER in ready and own.problem:
            left_out[LEADER] = own.problem
        ranks = tuple(sorted(ready.keys() - left_out.keys()))
        remarks = far_apart(replies, apart_s)
        self._conclude(current, Agreement(number, step, ranks, left_out, remarks=remarks))
        self._windows.receive(own.report)

    def _withdraw(
        self, current: _Current, reasons: tuple[str, ...], outcome: GivenUp = "refused"
    ) -> None:
        self._round = self._current = None
        number, left_out = current.number, current.left_out
        self.broadcast(Withdrawal(number, reasons, current.proposal.config, outcome))
        self._conclude(current, Agreement(number, None, (), left_out, reasons))

    def _conclude(self, current: _Current, made: Agreement) -> None:
        self._wake_s = math.inf
        self._windows.conclude(replace(made, took_s=self._clock() - current.began_s))
        self._pause_s = WATCH_S
        self._set_watch()

    # results of windows

    def _set_watch(self) -> None:
        pause_s = FINAL_WATCH_S if self._end_s is not None else self._pause_s
        watches = self._windows.pending and not self._has_left
        self._watch_s = self._clock() + pause_s if watches else math.inf

    def _watch(self) -> None:
        """Ask ranks with a pending window that have sent nothing for a while.

        A rank reports the end of its window by itself, but not if it died.
        """
        pending = self._windows.pending
        if pending and not self._round:
            self._pause_s = min(2 * self._pause_s, LONGEST_WATCH_S)
            self._ask(Question(min(pending)))
        self._set_watch()
