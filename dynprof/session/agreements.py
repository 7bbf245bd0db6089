"""Where the ranks of a job agree: what becomes of an edit that is saved where this one watches."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.coordination.coordinator import Coordinator
from dynprof.coordination.job_group import group_to_agree_in
from dynprof.coordination.messages import Cancellation, Proposal, Withdrawal
from dynprof.coordination.terms import LEADER, Agreement, Terms
from dynprof.errors import Problem
from dynprof.files.destination import destination
from dynprof.journal.edit_outcomes import TOLD
from dynprof.journal.journal import printable
from dynprof.journal.status import LEADS
from dynprof.plural import counted, listed_ranks
from dynprof.requests.plan import Refusal, blamed
from dynprof.requests.request import Asked, Cancel
from dynprof.session.job_windows import JobWindows
from dynprof.session.unproposed import Unproposed, named

if TYPE_CHECKING:
    from dynprof.coordination.messages import GivenUp
    from dynprof.delivery.deliveries import Deliveries
    from dynprof.journal.journal import Journal
    from dynprof.journal.status import JobStatus
    from dynprof.requests.edits import Edit
    from dynprof.session.edit_handler import EditHandler
    from dynprof.session.participation import Participation
    from dynprof.wall import Wall
    from dynprof.windows.this_process import ThisProcess

UNLED = 4
"""Of so many groups, the newest that are no more, windows are followed on this rank."""


class Agreements:
    """Takes edits on the watcher's thread, and looks after the group on the journal's.

    Args:
        process: This process.
        journal: Is told what became of edits.
        wall: Keeps failures from the threads.
        edits: Answers what this rank need not agree on.
        member: Does what the leader says.
        deliveries: Sends the records of windows.
    """

    def __init__(
        self,
        process: ThisProcess,
        journal: Journal,
        wall: Wall,
        edits: EditHandler,
        member: Participation,
        deliveries: Deliveries,
    ) -> None:
        self._process, self._journal, self._wall = process, journal, wall
        self._edits, self._member, self._deliveries = edits, member, deliveries
        self._coordinator: Coordinator | None = None
        self._windows: JobWindows | None = None
        # Of groups whose other ranks cannot be asked any more.
        self._unled: deque[JobWindows] = deque(maxlen=UNLED)
        self._looking = threading.Lock()
        self._left_s: float | None = None  # since when the group is no more, and it takes part yet
        self._unproposed = Unproposed(process.layout, member, journal, self._refuse)

    @property
    def part(self) -> str:
        """What part it has in agreements, for the status."""
        coordinator = self._coordinator
        if coordinator is None or coordinator.failed:
            return ""
        if coordinator.leads:
            return LEADS
        return f"follows {coordinator.leader}" if coordinator.leader else ""

    @property
    def job(self) -> JobStatus | None:
        """All ranks, where this one leads or has led; for the status."""
        coordinator, windows = self._coordinator, self._windows
        if windows is None:
            return None
        found = windows.status()
        of_groups_before = (one for before in (*self._unled,) for one in before.told())
        told = {one.request: one for one in (*of_groups_before, *found.earlier)}
        told.pop(found.request, None)
        if not (told or found.request or (coordinator and coordinator.leads)):
            return None
        return replace(found, earlier=tuple(told[number] for number in sorted(told)[-TOLD:]))

    # edits, on the watcher's thread

    def take(self, edit: Edit) -> None:
        """Answer an edit: propose it to the others where this rank leads, leave it where not."""
        self._look_for_a_group()
        while self._left_s is not None and (leaves := self._coordinator):
            leaves.end()  # this thread may wait; the journal's has a status to write
            self._look_for_a_group()
        coordinator = self._coordinator
        if coordinator and coordinator.leads:
            number = self._edits.enter(edit, self._windows.unused if self._windows else 0)
            self._edits.guarded(number, lambda: self._propose(coordinator, number, edit))
        elif coordinator and (leader := coordinator.wait_for_a_leader()):
            self._unproposed.read(edit, leader)
        else:  # there is none: rank 0 has no dynprof, or the store is of a kind that cannot serve
            self._edits.take(edit)

    def _propose(self, coordinator: Coordinator, number: int, edit: Edit) -> None:
        asked, text = self._edits.read(edit), edit.text
        if isinstance(asked, Asked):
            asked = self._forbidden(asked) or asked
        if isinstance(asked, Cancel):
            self._take_back(coordinator, "disarmed", f"disarmed by request {number}")
            coordinator.tell(Cancellation(number, text, edit.edited_at_s))
        elif isinstance(asked, Refusal):
            self._edits.refuse(number, asked)
            self._member.numbers.know(number, number)
            here = f"rank {self._process.rank.number} has refused it"
            reasons = tuple(printable(f"{here}: {problem}") for problem in asked.problems)
            coordinator.tell(Withdrawal(number, reasons, text))
        else:
            self._take_back(coordinator, "superseded", f"superseded by request {number}")
            self._member.propose(number, asked)
            if self._windows:
                self._windows.begin(number, asked)
            config = asked.config
            rules = config.agreement
            proposal = Proposal(number, text, edit.edited_at_s, rules.patience_s)
            downgrade = rules.unable == "downgrade"
            terms = Terms(config.asked_ranks, config.named_step, config.multiple, downgrade)
            coordinator.propose(proposal, terms, self._tell_of)

    def _take_back(self, coordinator: Coordinator, outcome: GivenUp, text: str) -> None:
        """Give up what waits until all have agreed on another one: the newest counts."""
        for number in coordinator.take_back(outcome, text):
            self._member.take_back(number)
            self._journal.tell(number, outcome, text)
            if self._windows:
                self._windows.settle(Agreement(number, None, reasons=(text,)))

    def _forbidden(self, asked: Asked) -> Refusal | None:
        """Refuse a place that may not be written here: this rank need not be one that records."""
        layout = self._process.layout
        config = asked.config
        place = destination(layout, config.prof_dir, config.storage.scratch_dir)
        if why := place.why_forbidden(layout):
            return Refusal(asked.parsed.locate((Problem(f"{why}.", blamed(config, why)),)))
        return None

    def _tell_of(self, made: Agreement) -> None:
        """Tell what came of a proposal; what a rank gave as its reason takes one line."""
        left_out = {rank: printable(why) for rank, why in made.left_out.items()}
        made = replace(made, left_out=left_out, reasons=tuple(map(printable, made.reasons)))
        if made.step is None:  # the store may have failed before this rank itself was told
            self._member.unasked(made.number)
            self._member.withdraw(Withdrawal(made.number, made.reasons, outcome=made.outcome))
        for text in made.remarks:
            self._journal.warning(f"request {made.number}: {text}")
        took = f"after {made.took_s * 1e3:,.0f} ms"
        for rank, why in sorted(made.left_out.items()):
            self._journal.warning(f"request {made.number}: rank {rank} takes no part: {why}")
        if made.step is not None:
            ranks = listed_ranks(made.ranks) if made.ranks else "no rank"
            text = f"{ranks} agreed on step {made.step} {took}"
            self._journal.info(f"request {made.number}: {text}")
        if self._windows:
            self._windows.settle(made)

    # once a second, on the journal's thread

    def look(self) -> None:
        """Take part where a group has come up, and no more where it has gone."""
        self._look_for_a_group()
        if self._coordinator:
            self._coordinator.look()
        self._hear_alone()
        self._unproposed.look(self._coordinator.leader if self._coordinator else "")

    def _refuse(self, edit: Edit, text: str) -> None:
        self._edits.refuse(self._edits.enter(edit), Refusal((Problem(text),)))

    def _hear_alone(self) -> None:
        """Bring records to their end whose other ranks are out of reach: by what is known here."""
        if self._coordinator and self._coordinator.failed:
            self._let_go_of_windows()
        for windows in tuple(self._unled):
            heard: set[int] = set()
            while windows.waits and (number := windows.number) not in heard:
                heard.add(number)
                windows.hear(number, {LEADER: self._member.where(number)})

    def _let_go_of_windows(self) -> None:
        if self._windows and self._windows not in self._unled:
            self._unled.append(self._windows)

    def _look_for_a_group(self) -> None:
        with self._looking:  # the watcher's thread does as well as the journal's
            self._begin_or_end()

    def _begin_or_end(self) -> None:
        process, before = self._process, self._coordinator
        group = group_to_agree_in(process.rank, process.store)
        is_left = self._left_s is not None
        if before and group is None and self._member.is_busy and not (before.failed or is_left):
            return  # the others are still to hear what becomes of it
        if before and (group is None or group.store is not before.group.store):
            before.end(wait=False)
            now_s = time.monotonic()
            self._left_s = now_s if self._left_s is None else self._left_s
            if before.is_alive and now_s < self._left_s + before.end_s:
                return
            self._coordinator = self._member.group = self._left_s = None
            self._let_go_of_windows()
        if group and self._coordinator is None:
            who = named(group.rank, process.layout.host, process.layout)
            self._member.group = group
            self._windows = JobWindows(
                process,
                group.world_size,
                who,
                self._wall.attempt,
                self._deliveries,
                self._journal.warning,
            )
            self._coordinator = Coordinator(
                group, self._member, who, self._wall, self._journal.warning, self._windows
            )
            ranks = counted(group.world_size, "rank")
            part = "leads" if self._coordinator.leads else "follows rank 0"
            text = f"{ranks} agree on the steps of windows; this one {part}"
            self._coordinator.begin(lambda: self._journal.info(text))

    def stop(self) -> None:
        """Agree on nothing more; what is recorded is still to be saved, and that to be said."""
        self._member.stop()
        if self._coordinator:
            self._coordinator.stop()

    def end(self) -> None:
        """Take part no more."""
        if self._coordinator:
            self._coordinator.end()
        self._hear_alone()
