"""The two threads of a rank for agreements: one does all work, the other blocks in the store.

The second puts what it receives into the queue of the first. One thread could not do both, for
three reasons. It must act at given times and on news of its own rank. After a wait that times out,
torch writes warnings to the job's stderr. And to end a wait through a key is a call to a store that
may not answer.
"""

from __future__ import annotations

import contextlib
import math
import queue
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as with_fields

from dynprof.errors import internal_failure
from dynprof.ranks.agreement_rules import LEADER
from dynprof.ranks.job_windows import LEFT
from dynprof.ranks.leader import FINAL_WAIT_S, REPLY_TIMEOUT_S, Leader
from dynprof.ranks.messages import (
    Joined,
    LeaderMessage,
    LeaderStarted,
    LeaderStopped,
    Proposal,
    Question,
    RankLeft,
    Reply,
    Report,
    parse_leader_message,
    parse_rank_messages,
    to_text,
)
from dynprof.ranks.store import (
    NO_MESSAGE,
    CannotServeError,
    Keys,
    LogReader,
    LogWriter,
    StoreLostError,
    value_of,
    wait_for_notice,
)
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.ranks.member import Member
    from dynprof.ranks.messages import Message
    from dynprof.ranks.store import JobGroup, TimedStore
    from dynprof.runtime.error_boundary import ErrorBoundary

    Event = Callable[[], object]

SILENT_CHECKS = 10  # The store is away after this many unanswered checks, one a second.
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Limits of the pause between reconnects: a quarter of the time since the store was lost."""
RENEW_WAITS_S = 60.0  # Interval at which the leader ends all waits, so that ranks renew them.
SILENCE_LIMIT_S = 180.0  # A rank reconnects after this silence: a connection may die silently.
LEAVE_S = 1.0  # How long the leader waits for the others to leave the store.
READY_CHECK_S = 0.05  # Interval at which a rank checks, without the store, if it is ready now.
WAKE_S = 0.02  # Interval of attempts to wake the thread in the store, until it has left.
END_TIMEOUT_S = 5.0  # How long the end of the process waits for the threads.
SILENT_STORE = f"it has not answered for {SILENCE_LIMIT_S:.0f} s"


class Participant:
    """Takes part in the agreements of one group."""

    def __init__(
        self,
        group: JobGroup,
        member: Member,
        name: str,  # rank, machine and config, for the logs of the others
        boundary: ErrorBoundary,
        warn: Callable[[str], None],
    ) -> None:
        self.group, self.member, self.name = group, member, name
        self.leader = ""  # the leader of this rank; empty if no other rank leads it
        self.is_over = False  # whether it has stopped for good
        self._boundary, self._warn = boundary, warn
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._ended, self._decided, self._serves = (threading.Event() for _ in range(3))
        self._leading: _LeaderSide | None = None
        self._calls: TimedStore | None = None
        self._looks, self._began_s = 0, time.monotonic()
        self._served_s = self._began_s  # until when it was connected
        self._on_joined: Callable[[], object] = bool
        self._waits_for_reports = True
        self._thread = own_thread(self._run, "dynprof-ranks")

    # for other threads

    @property
    def leads(self) -> bool:
        """Whether this rank leads, and reaches the store."""
        return self.group.rank == LEADER and self._serves.is_set()

    @property
    def away_s(self) -> float:
        """Seconds since the store was lost; 0 while it answers."""
        return 0.0 if self._serves.is_set() else time.monotonic() - self._served_s

    def begin(self, on_joined: Callable[[], object] = bool) -> None:
        """Start the thread; ``on_joined`` is called once, when this rank leads or has a leader."""
        self._on_joined = on_joined
        self._thread.start()

    def wait_until_decided(self, timeout_s: float) -> None:
        """Wait until this rank leads, follows or is alone, or until this time after its start."""
        self._decided.wait(max(0.0, self._began_s + timeout_s - time.monotonic()))

    def lead(
        self, action: Callable[[Leader], object], otherwise: Callable[[], object] = bool
    ) -> None:
        """Do something with the leader, on its thread; else, if this rank no longer leads."""

        def event() -> None:
            if self._leading and not self._ended.is_set():
                self._leading.take()  # ranks may have joined while this process stood still
                action(self._leading.leader)
            else:
                otherwise()

        self._put(event)

    def changed(self) -> None:
        """Send the news of this rank soon: a request has changed."""
        self._put(bool)

    def ask_store(self) -> None:
        """Send the store a call; :meth:`check_store` notices if it does not answer."""
        self._put(lambda: self._calls and value_of(self._calls, Keys.next))

    def _put(self, event: Event) -> None:
        self._events.put(event)
        if self.is_over:
            self._drain()

    def check_store(self) -> None:
        """Check whether the store answers; called once a second."""
        calls = self._calls
        is_silent = calls is not None and calls.unanswered_s > 0.5
        self._looks = self._looks + 1 if is_silent else 0
        if calls and self._looks >= SILENT_CHECKS and not calls.is_given_up:
            calls.is_given_up = True
            self._lose(f"the job's store has not answered for {SILENT_CHECKS} s")
        self.changed()

    def end(self, *, waits_for_reports: bool = True) -> None:
        """Stop taking part.

        Args:
            waits_for_reports: Whether the leader waits for the results of windows on other ranks.
        """
        self._waits_for_reports &= waits_for_reports
        last_s = FINAL_WAIT_S if self._waits_for_reports and self.leads else 0.0
        self._ended.set()
        self.changed()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(END_TIMEOUT_S + last_s)

    # on its own thread

    def _run(self) -> None:
        self._boundary.attempt("agreeing with the other ranks", self._serve_until_ended)
        was_part = self._serves.is_set()
        self._serves.clear()
        self.is_over, self.leader = True, ""
        self._decided.set()
        self._drain()
        if was_part and not self._ended.is_set():
            self.member.refuse_pending("the ranks no longer agree on steps")
        elif was_part and self.member.is_proposed:  # no leader concludes it
            self.member.refuse_pending("this rank has left the process group, or ends")

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty, StoreLostError):
            while True:
                self._events.get_nowait()()

    def _serve_until_ended(self) -> None:
        while not self._ended.is_set():
            try:
                self._calls, waits = self.group.connect()
                self._looks = 0
                serve = self._lead if self.group.rank == LEADER else self._follow
                serve(self._calls, waits)
                why = ""
            except CannotServeError as error:
                if not self.group.is_gone:
                    self._warn(f"this rank handles its requests without the others: {error}")
                return
            except StoreLostError as error:
                why = f"the job's store was lost: {error}"
            if self._ended.is_set() or self.group.is_gone:
                return
            self._lose(why)
            self._calls = None
            self._decided.set()
            away_s = time.monotonic() - self._served_s
            self._pause(min(max(PAUSE_S, away_s / 4), LONGEST_PAUSE_S))

    def _pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not self._ended.is_set() and time.monotonic() < until_s:
            with contextlib.suppress(StoreLostError):  # from the previous connection
                self.wait(until_s)

    def _lose(self, why: str) -> None:
        """Act alone until the store answers again; called on this or the journal's thread."""
        if had_part := self._serves.is_set():
            self._served_s = time.monotonic()
        self._serves.clear()
        self.leader = ""
        if why and had_part:
            self._on_joined = lambda: self._warn("the ranks agree again")
            text = "this rank handles its requests without the others until the store answers again"
            self._warn(f"{why}; {text}")
            self.member.refuse_pending(why)

    def answer(self, message: Message, place: int = 0) -> Reply:
        """Let this rank carry out a message; a failure of dynprof is the problem in its reply."""
        found: list[Reply] = []
        error = self._boundary.attempt(
            "handling a message of rank 0",
            lambda: found.append(self.member.answer(message, place)),
        )
        if error is None:
            return found[0]
        rank, number = self.group.rank, getattr(message, "number", 0)
        return Reply(rank, place, Report(rank, number), problem=internal_failure(error))

    def mark_joined(self) -> None:
        """Note that this rank leads or has a leader."""
        self.member.last_message_s = time.monotonic()  # The leader is heard.
        self._serves.set()
        self._decided.set()
        on_joined, self._on_joined = self._on_joined, bool
        on_joined()

    def wait(self, until_s: float = math.inf) -> None:
        """Handle the next event; return without one at that time, or to check for readiness."""
        if self.member.is_unready:
            until_s = min(until_s, time.monotonic() + READY_CHECK_S)
        event: Event = bool
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=min(max(until_s - time.monotonic(), 0.0), 3600.0))
        event()

    def _lead(self, calls: TimedStore, waits: TimedStore) -> None:
        leading = _LeaderSide(self, calls)
        listener = _Listener(self._events, lambda: wait_for_notice(waits), leading.receive)
        try:
            leading.leader.begin()
            self._leading = leading
            self.mark_joined()
            while not self._ended.is_set():
                leading.run_once()
            leading.end(waits_for_reports=self._waits_for_reports)
        finally:
            self._leading = None
            listener.end(lambda: calls.set(Keys.notice, "1"))

    def _follow(self, calls: TimedStore, waits: TimedStore) -> None:
        reader = LogReader(calls, waits)
        following = _FollowerSide(self, reader)
        if not following.join(reader.leader()) and self._decided.is_set():
            return  # Its leader left, and the store may end with it: do not wait there.
        listener = _Listener(self._events, reader.wait, following.receive, until=_is_leader_stopped)
        try:
            while not (self._ended.is_set() or following.is_left):
                self.wait(listener.received_s + SILENCE_LIMIT_S if self.leader else math.inf)
                if self.leader and time.monotonic() >= listener.received_s + SILENCE_LIMIT_S:
                    calls.is_given_up = True  # it may be silent too
                    raise StoreLostError(SILENT_STORE)
                following.send_news()
        finally:
            listener.end(lambda: reader.end_wait(reader.place))
        following.leave()  # last: the server may end once the leader knows


class _LeaderSide:
    """The events of a rank that leads."""

    def __init__(self, part: Participant, calls: TimedStore) -> None:
        self._part, self._member = part, part.member
        self._calls, self._log, self._run = calls, LogWriter(calls), secrets.token_hex(4)
        self._renew_s, self._silent_renewals = time.monotonic() + RENEW_WAITS_S, 0
        size, windows = part.group.world_size, part.member.windows
        self.leader = Leader(size, part.name, self._send, part.answer, windows, time.monotonic)

    def _send(self, message: Message, expect: int) -> int:
        if isinstance(message, (Proposal, Question)) and (numbers := self._member.numbers):
            message = with_fields(message, begun=numbers.newest())
        text = to_text(LeaderMessage(self._run, expect, message))
        if isinstance(message, LeaderStarted):
            return self._log.begin(text)
        return self._log.send(text, has_replies=isinstance(message, (Proposal, Question)))

    def receive(self, _: object) -> None:
        """Take the news of ranks after they have set the notice."""
        self._silent_renewals = 0
        self.take()

    def take(self) -> None:
        self.leader.receive(parse_rank_messages(self._log.take()))

    def run_once(self, until_s: float = math.inf) -> None:
        """Wait for an event, handle it, and run the periodic work."""
        self._part.wait(min(until_s, self.leader.deadline, self._renew_s))
        if time.monotonic() >= self.leader.late_s:
            self.take()  # The last reply sets the notice, and it is late.
        if time.monotonic() >= self._renew_s:
            self._renew()
        self.leader.tick()
        if report := self._member.news():
            self._member.windows.receive(report)
        if reply := self._member.ready_again():
            self.leader.refresh(reply)
        self._member.windows.write()

    def _renew(self) -> None:
        """End all waits, including this rank's."""
        self._renew_s = time.monotonic() + RENEW_WAITS_S
        self._silent_renewals += 1
        if self._silent_renewals * RENEW_WAITS_S >= SILENCE_LIMIT_S:
            self._calls.is_given_up = True  # it may be silent too
            raise StoreLostError(SILENT_STORE)
        self._log.send(NO_MESSAGE)
        self._calls.set(Keys.notice, "1")

    def end(self, *, waits_for_reports: bool) -> None:
        """Wait for the results of windows, then make the others leave the store."""
        self.leader.end()
        while waits_for_reports and not self.leader.is_over:
            self.run_once()
        self.leader.leave()
        until_s = time.monotonic() + LEAVE_S
        while self.leader.others and time.monotonic() < until_s:
            self.run_once(until_s)
        if waits_for_reports:
            self._member.windows.drop_others(LEFT)
        self._member.windows.write()
        self._log.resign()


class _FollowerSide:
    """The events of a rank that follows."""

    def __init__(self, part: Participant, reader: LogReader) -> None:
        self._part, self._log, self._member = part, reader, part.member
        self._by = ""  # the leader's token
        self.is_left = False

    def join(self, raw: bytes) -> bool:
        """Follow the leader of a first message; return False if there is no leader."""
        said = parse_leader_message(raw)
        if said is None or not isinstance(said.message, LeaderStarted):
            return False
        if self._by and self._by != said.by:
            self._member.refuse_pending("another leader has begun")
        self._by, self._part.leader = said.by, said.message.who
        joined = Joined(self._part.group.rank, self._member.reports())
        self._log.send_news(to_text(joined))
        self._part.mark_joined()
        return True

    def receive(self, received: tuple[int, bytes | None]) -> None:
        place, raw = received
        said = parse_leader_message(raw or b"")
        if raw is None:
            self._member.refuse_pending("this rank was away, and the others continued")
            self.join(self._log.leader())
        elif said and isinstance(said.message, LeaderStarted):
            self.join(raw)
        elif said and said.by == self._by:
            self._do(said, place)

    def _do(self, said: LeaderMessage, place: int) -> None:
        if isinstance(said.message, LeaderStopped):
            self.is_left, self._part.leader = True, ""
            if not self._part.group.is_gone:
                self._member.refuse_pending("the leader has ended")
            return
        reply = self._part.answer(said.message, place)
        if isinstance(said.message, (Proposal, Question)):
            self._log.reply(place, to_text(reply), said.expect)

    def send_news(self) -> None:
        if self.is_left or not self._by:
            return
        if report := self._member.news():
            self._log.send_news(to_text(report))
        if reply := self._member.ready_again():
            self._log.send_news(to_text(reply))

    def leave(self) -> None:
        """Tell the leader that this rank no longer receives messages."""
        if self._by:
            left = RankLeft(self._part.group.rank, self._member.reports())
            self._log.send_news(to_text(left))


def _is_leader_stopped(received: tuple[int, bytes | None]) -> bool:
    said = parse_leader_message(received[1] or b"")
    return said is not None and isinstance(said.message, LeaderStopped)


class _Listener:
    """A thread that blocks in the store, and puts what it receives into the queue of events.

    Args:
        receive: Blocks; raises :class:`StoreLostError` if the store is gone.
        then: Called with each thing received, as an event.
        until: Returns whether a thing received is the last one: the store may end right after.
    """

    def __init__(
        self,
        events: queue.SimpleQueue[Event],
        receive: Callable[[], Any],
        then: Callable[[Any], object],
        until: Callable[[Any], bool] = bool,
    ) -> None:
        self._events, self._receive, self._then, self._until = events, receive, then, until
        self._has_left, self.received_s = False, time.monotonic()
        self._thread = own_thread(self._run, "dynprof-listen")
        self._thread.start()

    def end(self, wake: Callable[[], object]) -> None:
        """Get the thread out of the store: one in there as Python ends aborts the process."""
        self._has_left, until_s = True, time.monotonic() + REPLY_TIMEOUT_S
        with contextlib.suppress(StoreLostError):
            while self._thread.is_alive() and time.monotonic() < until_s:
                wake()
                self._thread.join(WAKE_S)
        self._thread.join(max(until_s - time.monotonic(), 0.0))

    def _run(self) -> None:
        is_last = False
        while not (self._has_left or is_last):
            try:
                found = self._receive()
            except StoreLostError as error:
                self._put(_raise, error)
                return
            self.received_s = time.monotonic()
            is_last = self._until(found)
            self._put(self._then, found)

    def _put(self, then: Callable[..., object], found: object) -> None:
        self._events.put(lambda: None if self._has_left else then(found))


def _raise(error: StoreLostError) -> None:
    raise error
