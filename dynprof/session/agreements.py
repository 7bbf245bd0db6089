"""Where the ranks of a job agree: what this one proposes, and what it does with proposals."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.config import parse_config
from dynprof.coordination.coordinator import Coordinator, group_to_agree_in
from dynprof.coordination.messages import Cancellation, Proposal, Reply, Withdrawal
from dynprof.errors import ConfigError, Problem
from dynprof.journal.status import LEADS
from dynprof.plural import counted, listed_ranks
from dynprof.requests.edits import Edit
from dynprof.requests.plan import Refusal
from dynprof.requests.request import Asked, Cancel
from dynprof.session.job_windows import JobWindows

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.coordination.leader import Agreement
    from dynprof.coordination.messages import Opening
    from dynprof.journal.journal import Journal
    from dynprof.journal.status import JobStatus
    from dynprof.requests.inbox import Inbox
    from dynprof.session.edit_handler import EditHandler
    from dynprof.wall import Wall
    from dynprof.windows.cost_account import CostAccount
    from dynprof.windows.loop import Loop
    from dynprof.windows.this_process import ThisProcess

PATIENCE_S = 30.0
"""For so long a rank may be busy with the window before, until it holds up all others' no more."""
LOOK_AGAIN_S = 0.02
PROPOSED_WITHIN_S = 10.0
"""What a rank reads that follows is proposed by then, where all read the same file."""


class Agreements:
    """Takes edits on the watcher's thread, and the leader's proposals on another.

    Args:
        process: This process.
        inbox: Knows the step.
        loop: Serves windows.
        journal: Is told what became of edits.
        wall: Keeps failures from the threads.
        costs: Knows how long steps take.
        edits: Answers what this rank need not agree on.
        state: Returns the state of this rank, as in the status.
    """

    def __init__(
        self,
        process: ThisProcess,
        inbox: Inbox,
        loop: Loop,
        journal: Journal,
        wall: Wall,
        costs: CostAccount,
        edits: EditHandler,
        state: Callable[[], str],
    ) -> None:
        self._process, self._inbox, self._loop = process, inbox, loop
        self._journal, self._wall, self._costs, self._edits = journal, wall, costs, edits
        self._state = state
        self._coordinator: Coordinator | None = None
        self._windows: JobWindows | None = None
        self._looking = threading.Lock()
        self._proposed: dict[int, Asked] = {}  # by this rank, where it leads
        self._answering = 0, 0  # the leader's number of the newest proposal, and its own
        self._pending: tuple[int, int, Asked] | None = None  # the leader's number, and its own
        self._read_here: tuple[Edit, float] | None = None  # not said yet who leads
        self._heard = "", -PROPOSED_WITHIN_S  # the last config that the leader spoke of, and when

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
        """All ranks, where this one leads; for the status."""
        coordinator = self._coordinator
        return (
            self._windows.status() if self._windows and coordinator and coordinator.leads else None
        )

    # edits, on the watcher's thread

    def take(self, edit: Edit) -> None:
        """Answer an edit: propose it to the others where this rank leads, leave it where not."""
        self._look_for_a_group()
        coordinator = self._coordinator
        if coordinator and coordinator.leads:
            number = self._edits.enter(edit)
            self._edits.guarded(number, lambda: self._propose(coordinator, number, edit))
        elif coordinator and (leader := coordinator.wait_for_a_leader()):
            self._read_here = edit, time.monotonic()
            self._journal.info(f"{leader} leads: what it has accepted is served, on all ranks")
        else:  # there is none: rank 0 has no dynprof, or the store is of a kind that cannot serve
            self._edits.take(edit)

    def _propose(self, coordinator: Coordinator, number: int, edit: Edit) -> None:
        asked, text = self._edits.read(edit), edit.text
        if isinstance(asked, Asked):
            asked = self._forbidden(asked) or asked
        if isinstance(asked, Cancel):
            coordinator.tell(Cancellation(number, text, edit.edited_at_s))
        elif isinstance(asked, Refusal):
            self._edits.refuse(number, asked)
            reasons = ("it was refused where it was saved",)
            coordinator.tell(Withdrawal(number, reasons, text))
        else:
            self._proposed[number] = asked
            if self._windows:
                self._windows.begin(number, asked)
            config = asked.config
            coordinator.propose(
                Proposal(number, text, edit.edited_at_s, PATIENCE_S),
                config.asked_ranks.__contains__,
                config.start_step if config.start_step > 0 else None,
                self._tell_of,
            )

    def _forbidden(self, asked: Asked) -> Refusal | None:
        """Refuse a place that may not be written here: this rank need not be one that records."""
        layout = self._process.layout
        if why := layout.why_forbidden(layout.capture_dir(asked.config.prof_dir)):
            return Refusal(asked.parsed.locate((Problem(f"{why}.", "/prof_dir"),)))
        return None

    def _tell_of(self, made: Agreement) -> None:
        if made.step is None:  # the store may have failed before this rank itself was told
            if asked := self._proposed.pop(made.number, None):
                self._pending = made.number, made.number, asked
            self.withdraw(Withdrawal(made.number, made.reasons))
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
        if self._read_here is None:
            return
        edit, read_s = self._read_here
        if time.monotonic() < read_s + PROPOSED_WITHIN_S:
            return
        self._read_here = None
        text, heard_s = self._heard
        if text != edit.text or heard_s < read_s - PROPOSED_WITHIN_S:
            leader = self.part.removeprefix("follows ") or "who leads"
            text = f"what was saved here was not proposed by {leader}; save it there."
            self._edits.refuse(self._edits.enter(edit), Refusal((Problem(text),)))

    def _look_for_a_group(self) -> None:
        with self._looking:  # the watcher's thread does as well as the journal's
            self._begin_or_end()

    def _begin_or_end(self) -> None:
        group, before = group_to_agree_in(), self._coordinator
        if before and (group is None or group.store is not before.group.store):
            before.end()
            self._coordinator = None
        if group and self._coordinator is None:
            layout = self._process.layout
            who = f"rank {group.rank} on {layout.host} ({layout.config})"
            self._windows = JobWindows(self._process, group.world_size, who)
            self._coordinator = Coordinator(
                group, self, who, self._wall, self._journal.warning, self._windows
            )
            self._coordinator.begin()
            ranks = counted(group.world_size, "rank")
            part = "leads" if self._coordinator.leads else "follows rank 0"
            self._journal.info(f"{ranks} agree on the steps of windows; this one {part}")

    def end(self) -> None:
        """Take part no more."""
        if self._coordinator:
            self._coordinator.end()

    # what the leader says, on the coordinator's thread

    def consider(self, proposal: Proposal) -> Reply:
        """Say whether this rank takes part and can, once it is free for a window."""
        number, asked = self._asked_by(proposal)
        self._answering = proposal.number, number
        self._pending, self._heard = None, (proposal.config, time.monotonic())
        if isinstance(asked, Refusal):
            return self._refuse(number, asked)
        planned = self._edits.plan(number, asked)
        if isinstance(planned, Refusal):
            return self._refuse(number, planned)
        self._pending = proposal.number, number, asked
        return self._reply(self._wait_until_free(proposal.patience_s), takes_part=True)

    def _refuse(self, number: int, refusal: Refusal) -> Reply:
        self._edits.refuse(number, refusal)
        return self._reply("; ".join(map(str, refusal.problems)) if refusal.asked else "")

    def _asked_by(self, proposal: Proposal) -> tuple[int, Asked | Refusal]:
        if asked := self._proposed.pop(proposal.number, None):
            return proposal.number, asked
        edit = Edit(proposal.config.encode(), proposal.edited_at_s)
        self._loop.admission.forgive()
        number = self._edits.enter(edit)
        try:
            parsed = parse_config(edit.raw)
        except ConfigError as error:  # another version of dynprof leads
            return number, Refusal(error.problems)
        return number, Asked(edit, parsed.config, parsed, now=False)

    def _wait_until_free(self, patience_s: float) -> str:
        until_s = time.monotonic() + patience_s
        while self._loop.occupied:
            if time.monotonic() > until_s:
                return f"its last window was not closed and saved within {patience_s:g} s"
            time.sleep(LOOK_AGAIN_S)
        return ""

    def where(self, number: int) -> Reply:
        """Say at which step this rank is, and what became of a request."""
        theirs, own = self._answering
        answer = self._journal.outcomes.answer(own) if number == theirs else None
        reply = self._reply(takes_part=self._pending is not None)
        if answer is None:
            return reply
        capture = str(self._process.layout.root / answer.capture) if answer.capture else ""
        return replace(reply, outcome=answer.outcome, capture=capture)

    def open_at(self, opening: Opening) -> Reply:
        """Open at that step, or say that it is too late."""
        pending, self._pending = self._pending, None
        if pending is None or pending[0] != opening.number:
            return self._reply()
        _, number, asked = pending
        if why := opening.left_out.get(self._rank):
            text = f"left out by the leader: {why}"
            self._edits.refuse(number, Refusal((Problem(text),)))
            return self._reply()
        config = asked.config.model_copy(update={"start_step": opening.step})
        refused = self._edits.serve(number, replace(asked, config=config))
        return self._reply("; ".join(map(str, refused.problems)) if refused else "")

    def withdraw(self, withdrawal: Withdrawal) -> Reply:
        """Forget what was proposed, and say why."""
        pending, self._pending = self._pending, None
        if withdrawal.config is not None:
            self._heard = withdrawal.config, time.monotonic()
        if pending and pending[0] == withdrawal.number:
            problems = tuple(Problem(f"{reason}; no rank opens.") for reason in withdrawal.reasons)
            self._edits.refuse(pending[1], Refusal(problems))
        return self._reply()

    def cancel(self, cancellation: Cancellation) -> Reply:
        """Disarm what waits, close what is open."""
        number, self._heard = cancellation.number, (cancellation.config, time.monotonic())
        if not (self._coordinator and self._coordinator.leads):
            raw = cancellation.config.encode()
            number = self._edits.enter(Edit(raw, cancellation.edited_at_s))
        self._edits.cancel(number)
        return self._reply()

    def left_alone(self, why: str) -> None:
        """Refuse what was proposed: nobody will say what becomes of it."""
        pending, self._pending = self._pending, None
        waiting = [pending[1]] if pending else []
        while self._proposed:
            waiting.append(self._proposed.popitem()[0])
        self._journal.info(why + ("" if waiting else "; nothing was under way"))
        for number in waiting:
            self._edits.refuse(number, Refusal((Problem(f"{why}; save it once more."),)))

    @property
    def _rank(self) -> int:
        return self._coordinator.group.rank if self._coordinator else 0

    def _reply(self, problem: str = "", *, takes_part: bool = False) -> Reply:
        step_ms = self._costs.step_ms()
        return Reply(
            rank=self._rank,
            problem=problem,
            takes_part=takes_part and not problem,
            step=self._inbox.step,
            step_s=None if step_ms is None else step_ms / 1e3,
            still_s=self._costs.still_s(),
            host=self._process.layout.host,
            state=self._state(),
        )
