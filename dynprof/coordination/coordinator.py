"""Has this process take part in what the ranks of its job agree on, on a thread of its own."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.coordination.follower import Follower
from dynprof.coordination.leader import Leader
from dynprof.coordination.listener import LOOKS_A_SECOND, Listener
from dynprof.coordination.messages import Farewell
from dynprof.coordination.participant import Walled
from dynprof.coordination.roll import JOIN_S, LOOK_AGAIN_S, SOON_S
from dynprof.coordination.speaker import Speaker
from dynprof.coordination.terms import LEADER, Agreement, NoWindowError
from dynprof.coordination.timed_store import TimedStore
from dynprof.process.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynprof.coordination.job_group import JobGroup
    from dynprof.coordination.job_store import Store
    from dynprof.coordination.messages import GivenUp, Message, Proposal
    from dynprof.coordination.participant import Participant, RollKeeper
    from dynprof.coordination.terms import Terms
    from dynprof.wall import Wall

END_S = 5.0
"""The end of the process waits so long until this thread is out of torch's store."""
LAST_S = 15.0
"""In which the leader waits for what becomes of a window where others still save it."""
WATCHED_S, UNHEARD_S, UNWATCHED_S = 1.0, 2.0, 10.0
"""Between two calls of the roll: while ranks join or are on their way with a window, while one is
silent that may have recorded one, and else."""
Ask = Callable[[Leader], object]
"""What the leader's thread is to do."""
SILENT_S = 10.0
"""A store that has not answered for so long is taken to be lost."""
NOT_ASKED = ("the other ranks could not be asked",)


class _StoppedError(Exception):
    """The session ends amid an agreement."""


class Coordinator:
    """Takes part in the agreements of one process group.

    Args:
        group: The group.
        me: This rank.
        who: What the others are told of the leader: its host and its config.
        wall: Keeps failures from the thread.
        say: Is told what happened.
        keeper: Learns where the others are, on the rank that leads.

    Attributes:
        group: The group.
        failed: Whether its store could not be reached, or is no more.
    """

    def __init__(
        self,
        group: JobGroup,
        me: Participant,
        who: str,
        wall: Wall,
        say: Callable[[str], None],
        keeper: RollKeeper,
    ) -> None:
        self.group, self.failed = group, False
        self._me = Walled(me, group.rank, wall)
        self._who, self._wall, self._say = who, wall, say
        self._keeper = keeper
        self._asks: queue.SimpleQueue[Ask | None] = queue.SimpleQueue()
        self._not_begun: set[int] = set()  # of what is proposed
        self._instead: NoWindowError | None = None  # why what the ranks agree on is not wanted
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._hears_the_last = False
        self._began_s = self._called_s = time.monotonic()
        self._follower: Follower | None = None
        self._on_part: Callable[[], object] = bool
        self._is_connected = False
        self._store = TimedStore(self._connect, is_gone=lambda: self.group.is_gone)
        self._thread = own_thread(self._run, "dynprof-agree")

    @property
    def leads(self) -> bool:
        """Whether this rank leads."""
        return self.group.rank == LEADER and not self.failed

    def wait_for_a_leader(self) -> str:
        """Return who leads this rank; just after the process group has come up, wait for that."""
        while not (self.leader or self.failed or time.monotonic() > self._began_s + JOIN_S):
            if self._ended.wait(LOOK_AGAIN_S):
                break
        return self.leader

    @property
    def leader(self) -> str:
        """Who leads this rank; empty where nobody else does."""
        return self._follower.leader if self._follower and not self.failed else ""

    def begin(self, on_part: Callable[[], object] = bool) -> None:
        """Begin to lead, or to follow.

        Args:
            on_part: Called on the thread of this, once, as it leads, or somebody leads it.
        """
        self._on_part = on_part
        self._thread.start()

    def _connect(self) -> Store:
        store = self.group.connect()
        self._is_connected = True
        return store

    def propose(self, proposal: Proposal, terms: Terms, done: Callable[[Agreement], None]) -> None:
        """Bring the ranks to agree, once those are done with what they agree on.

        Args:
            proposal: What the operator asks for.
            terms: That of the ranks together.
            done: Is told what came of it, on the thread of this.
        """
        self._not_begun.add(proposal.number)
        self._asks.put(functools.partial(self._agree, proposal, terms, done, time.monotonic()))
        if self.failed:  # meanwhile, and nobody takes it any more
            done(Agreement(proposal.number, None, reasons=NOT_ASKED))

    def take_back(self, outcome: GivenUp, why: str) -> list[int]:
        """Return the numbers of what was proposed and has not begun, which it never will.

        Where ranks are waited for as they agree on another one, that is given up as well, and has
        that outcome, and why.
        """
        found = []
        with contextlib.suppress(KeyError):  # the thread of this may begin one meanwhile
            while True:
                found.append(self._not_begun.pop())
        self._instead = NoWindowError(why, outcome=outcome)  # last: who begins one forgets it first
        return sorted(found)

    def tell(self, message: Message) -> None:
        """Tell all ranks, this one included, what needs no agreement."""
        self._asks.put(lambda leader: leader.tell(message))

    def look(self) -> None:
        """Agree no more where the store has not answered for long; called each second."""
        if self.failed or self._store.look() < SILENT_S:
            return
        self.failed = True
        self._store.give_up()
        why = f"the ranks agree no more: the job's store has not answered for {SILENT_S:g} s"
        self._say(why)
        self._me.left_alone(why)

    def stop(self) -> None:
        """Agree on nothing more; go on to say, or to hear, what becomes of what is recorded."""
        self._stopped.set()
        self._asks.put(None)

    @property
    def is_alive(self) -> bool:
        """Whether it still says or hears what becomes of windows; at the end that takes a while."""
        return self._thread.is_alive()

    @property
    def end_s(self) -> float:
        """How long that may take; where the store does not answer it would take for ever."""
        return END_S + (LAST_S if self.leads else 0.0)

    def end(self, *, wait: bool = True) -> None:
        """Take part no more; the leader says so to the others."""
        self.stop()
        self._ended.set()
        if wait and self.is_alive and self._thread is not threading.current_thread():
            self._thread.join(timeout=self.end_s)

    def _run(self) -> None:
        part = self._lead if self.group.rank == LEADER else self._follow
        doing = "agreeing with the other ranks"
        self._wall.attempt(doing, lambda: self._until_it_fails(part))
        if self._ended.is_set() or self.failed:
            return
        self.failed = True
        if self._is_connected or self._not_begun:
            self._me.left_alone("the ranks agree no more")

    def _until_it_fails(self, part: Callable[[], None]) -> None:
        """A store that is no more is nothing of dynprof's, and no news where the job ends."""
        try:
            part()
        except (RuntimeError, ValueError) as error:
            if not (self._ended.is_set() or self.failed):
                what = "the ranks agree no more" if self._is_connected else "this rank is by itself"
                self._say(f"{what}: {str(error).splitlines()[0]}")
            self.failed = self.failed or self._ended.is_set()

    def _lead(self) -> None:
        speaker = Speaker(self._store, self.group.world_size, sleep=self._sleep)
        leader = Leader(speaker, self._me, self.group.world_size, sleep=self._sleep)
        speaker.lead(self._who)
        self._on_part()
        try:
            with contextlib.suppress(_StoppedError):
                while ask := self._next_ask():
                    ask(leader)
            self._ended.wait()
            self._hears_the_last = True
            self._hear_the_last(leader)
        finally:  # else the others would go on to listen
            if not self.failed:
                speaker.resign(Farewell())

    def _next_ask(self) -> Ask | None:
        """Wait for what to do next; where the roll is due, that is first."""
        left_s = self._due_s()
        with contextlib.suppress(queue.Empty):
            if left_s > 0:
                return self._asks.get(timeout=left_s)
        return self._call_the_roll

    def _due_s(self) -> float:
        """Return in how many seconds the roll is to be called."""
        is_new, under_way = time.monotonic() < self._began_s + JOIN_S, self._keeper.under_way
        rare_s = UNHEARD_S if self._keeper.unheard else UNWATCHED_S
        pause_s = WATCHED_S / max(1, under_way) if under_way or is_new else rare_s
        pause_s += self.group.world_size / LOOKS_A_SECOND
        return self._called_s + pause_s - time.monotonic()

    def _call_the_roll(self, leader: Leader) -> None:
        number = self._keeper.number
        self._keeper.hear(number, leader.roll_call(number))
        self._called_s = time.monotonic()

    def _hear_the_last(self, leader: Leader) -> None:
        """Call the roll until each rank is done with its windows, or goes on with none of them.

        About each window once at least: a rank that was silent may have its capture.
        """
        until_s, asked = time.monotonic() + LAST_S, set[int]()
        while (left_s := until_s - time.monotonic()) > 0:
            number, waits = self._keeper.number, bool(self._keeper.waits)
            if number in asked and (not waits or self._keeper.stands):  # who may wait for this rank
                break
            if not (waits or self._keeper.unheard):
                break
            asked.add(number)
            try:
                replies = leader.roll_call(number, min(left_s, SOON_S))
            except RuntimeError:  # the store has gone with the process group
                self.failed = True
                return
            self._keeper.hear(number, replies)
            time.sleep(LOOK_AGAIN_S)
        self._keeper.leave()

    def _sleep(self, seconds: float) -> None:
        if self._hears_the_last:
            time.sleep(seconds)
        elif self._stopped.wait(seconds):
            raise _StoppedError

    def _agree(
        self,
        proposal: Proposal,
        terms: Terms,
        done: Callable[[Agreement], None],
        asked_s: float,
        leader: Leader,
    ) -> None:
        self._instead = None  # first: it may be taken back as it begins
        try:
            self._not_begun.remove(proposal.number)
        except KeyError:
            return
        made = Agreement(proposal.number, None, reasons=NOT_ASKED)
        meanwhile = functools.partial(self._meanwhile, leader, proposal.number)
        try:
            made = leader.agree(proposal, terms, self._keeper.waits, meanwhile)
        finally:
            done(replace(made, took_s=time.monotonic() - asked_s))

    def _meanwhile(self, leader: Leader, number: int, waits: Mapping[int, str]) -> None:
        """Call the roll where it is due as ranks are waited for; raise where that is not wanted."""
        if self._instead:
            raise self._instead
        self._keeper.wait_for(number, waits)
        if self._due_s() <= 0:
            self._call_the_roll(leader)

    def _follow(self) -> None:
        group, rest = self.group, self._ended.wait
        size, machines = group.world_size, group.machines
        listener = Listener(self._store, group.rank, size, machines, rest, say=self._say)
        self._follower = Follower(listener, self._me, self._ended.is_set, self._on_part)
        try:
            self._follower.follow()
        finally:
            listener.end()
