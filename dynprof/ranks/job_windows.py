"""Records of the windows of all ranks, as the leader knows them, for the status and the disk.

Each request has one :class:`JobWindow`; ``info/window.json`` and the status are made from it.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dynprof.captures.deliveries import DeliveryTask, delivery_of
from dynprof.captures.manifest import RequestRecord
from dynprof.captures.window_record import RankRecord, WindowRecord
from dynprof.journal.edit_outcomes import IN_PROGRESS, MAX_IN_STATUS, in_words
from dynprof.journal.journal import printable
from dynprof.journal.status import JobStatus, WindowStatus
from dynprof.ranks.agreement_rules import LEADER, MAX_NAMED, Agreement, grouped_reasons
from dynprof.ranks.messages import Report
from dynprof.runtime.clock import iso
from dynprof.runtime.layout import window_dir_name
from dynprof.runtime.plural import listed_ranks
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from dynprof.captures.deliveries import Deliveries
    from dynprof.captures.exporter import Attempt
    from dynprof.journal.journal import Journal
    from dynprof.requests.request import UnplannedRequest
    from dynprof.windows.process_context import ProcessContext

NO_ANSWER, FORGOTTEN = "it does not answer", "it does not know the request: dynprof restarted"
LEFT = "dynprof ended on the leader while it was {} here"
STALLED_S = 3.0
"""A rank this long in a step, and three times its usual step, may be waiting for other ranks."""
UNSERVED, GIVEN_UP = {"refused", "not served", "failed"}, {"superseded", "cancelled"}
"""Outcomes without a capture: for a reason of that rank; because of a later request."""
BEGUN = {"open", "saving", "saved", "failed", "refused"}  # Outcomes after the start step.


@dataclass
class JobWindow:
    """One request on all ranks; :class:`JobWindows` changes it."""

    number: int
    asked: UnplannedRequest
    leader: str  # rank, machine and config of the leader
    world_size: int
    made: Agreement | None = None  # the result of the proposal; None while it is under way
    reports: dict[int, Report] = field(default_factory=dict)  # the newest report of each rank
    # Ranks that no longer report, and that delay the start; each with the reason.
    unreachable: dict[int, str] = field(default_factory=dict)
    not_ready: Mapping[int, str] = field(default_factory=dict)
    written: WindowRecord | None = None  # the record on disk
    is_changed: bool = True  # whether that may be old

    def outcome(self, rank: int) -> str:
        """Return the outcome on a rank that agreed to open; empty if it is unknown."""
        said = self.reports[rank].outcome if rank in self.reports else "waiting"
        return "" if rank in self.unreachable and said in IN_PROGRESS else said

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that agreed to open."""
        return self.made.ranks if self.made else ()

    @property
    def pending(self) -> set[int]:
        """The ranks whose window has not ended, and that will still report."""
        return {rank for rank in self.ranks if self.outcome(rank) in IN_PROGRESS}

    @property
    def is_over(self) -> bool:
        """Whether it has ended on all ranks."""
        return self.made is not None and not self.pending

    @property
    def missing(self) -> dict[int, str]:
        """The ranks that take no part or dropped out, and why."""
        found = dict(self.made.left_out) if self.made else {}
        for rank in self.ranks:
            if not self.outcome(rank):
                found[rank] = self.unreachable.get(rank, FORGOTTEN)
        return dict(sorted({**found, **self.lost}.items()))

    @property
    def lost(self) -> dict[int, str]:
        """The ranks that agreed but have no capture, and why.

        If all ranks gave it up for a later request, none has lost it.
        """
        said = {rank: self.reports[rank] for rank in self.ranks if rank in self.reports}
        has_begun = any(one.outcome in BEGUN for one in said.values())
        ends = UNSERVED | GIVEN_UP if has_begun else UNSERVED
        ended = {rank: one for rank, one in said.items() if one.outcome in ends}
        return {rank: in_words(one.outcome, one.why) for rank, one in ended.items()}

    @property
    def stragglers(self) -> dict[int, str]:
        """The ranks that others wait for, that are missing, or that are slower than most."""
        if self.made is None:
            waits = sorted(self.not_ready.items())[:MAX_NAMED]
            return {rank: f"waited for: {why}" for rank, why in waits}
        found, pending = self.missing, self.pending
        if len(pending) * 2 <= len(self.ranks):
            slow = {rank: self.reports[rank] for rank in pending if rank in self.reports}
            found |= {rank: f"still {_activity(one)}" for rank, one in slow.items()}
        return dict(sorted(found.items())[:MAX_NAMED])

    @property
    def steps(self) -> tuple[int, int] | None:
        """The first and the last recorded step; None if the ranks have not agreed on a step."""
        if self.made is None or self.made.step is None:
            return None
        first = self.made.step + self.asked.config.warmup
        return first, first + self.asked.config.active - 1

    def status(self, record: str) -> WindowStatus:
        """Return its part of the status, which names the path of its record."""
        made, missing, ranks = self.made, self.missing, self.ranks
        ends = Counter(self.outcome(rank) for rank in ranks if rank not in missing)
        saved = ends.pop("saved", 0)
        said = sorted(self.reports.items())
        cut = [f"rank {rank} was cut short: {one.cut}" for rank, one in said if one.cut]
        return WindowStatus(
            request=self.number,
            asked=len({*ranks, *missing}),
            saved=saved,
            unsaved={one: ends[one] for one in sorted(ends.keys() - {*IN_PROGRESS})},
            pending=len(self.pending) if made else None,
            stragglers=self.stragglers,
            problems=made.reasons if made else (),
            remarks=(*(made.remarks if made else ()), *cut[:MAX_NAMED]),
            record=record,
        )

    def record(self) -> WindowRecord | None:
        """Return its record; None if the ranks have not agreed on a step."""
        made, steps, edit, missing = self.made, self.steps, self.asked.edit, self.missing
        if made is None or made.step is None or steps is None:
            return None
        ranks = {rank: self._on(rank) for rank in self.ranks if rank not in missing}
        return WindowRecord(
            dynprof=__version__,
            leader=self.leader,
            world_size=self.world_size,
            request=RequestRecord(
                number=self.number,
                edited_at=iso(edit.edited_at_s),
                sha256=hashlib.sha256(edit.raw).hexdigest(),
                config=self.asked.config.to_json(),
                trigger=edit.trigger,
            ),
            start_step=made.step,
            first=steps[0],
            last=steps[1],
            asked=tuple(sorted({*made.ranks, *made.left_out})),
            ranks=ranks,
            missing=missing,
            agreed_ms=round(made.took_s * 1e3, 3),
            remarks=made.remarks,
            complete=not missing and all(one.is_whole for one in ranks.values()),
        )

    def _on(self, rank: int) -> RankRecord:
        one, outcome = self.reports.get(rank, Report(rank)), self.outcome(rank)
        return RankRecord(host=one.host, outcome=outcome, capture=one.capture, cut=one.cut)


def _activity(report: Report) -> str:
    """Return what a rank does with a window; its state may be that of another window."""
    at_it = report.outcome == "open" or report.state == "sending"
    return report.state if at_it and report.state else report.outcome


def _is_stalled(report: Report) -> bool:
    stands_still = report.still_s > max(STALLED_S, 3 * (report.step_s or 0.0))
    return stands_still and report.outcome != "saving"


class JobWindows:
    """The newest windows of all ranks, and their records on disk."""

    def __init__(
        self, process: ProcessContext, attempt: Attempt, deliveries: Deliveries, journal: Journal
    ) -> None:
        self._process, self._attempt = process, attempt
        self._deliveries, self._journal = deliveries, journal
        self._lock = threading.RLock()  # a signal handler may call status() while it is held
        self._writing = threading.RLock()
        self._kept: dict[int, JobWindow] = {}
        self._leader, self._world_size = "", 0
        self.newest = 0  # the highest request number of any rank
        self._states: dict[int, str] = {}
        self._heard_at = 0.0
        self._wrote_s = -math.inf

    @property
    def pending(self) -> dict[int, set[int]]:
        """The pending ranks of each window, by its number."""
        with self._lock:
            return {n: pending for n, one in self._kept.items() if (pending := one.pending)}

    @property
    def is_stalled(self) -> bool:
        """Whether no pending rank steps or saves: they may wait for this one in a collective."""
        with self._lock:
            said = [one.reports.get(rank) for one in self._kept.values() for rank in one.pending]
        return all(one is None or _is_stalled(one) for one in said)

    def asked(self, number: int) -> UnplannedRequest | None:
        """Return a request that this process leads; None for another number."""
        known = self._kept.get(number)
        return known.asked if known else None

    def begin_group(self, leader: str, world_size: int) -> None:
        """Begin with the ranks of a group; windows of an earlier group stay."""
        with self._lock:
            self._leader, self._world_size, self._states = leader, world_size, {}

    def begin(self, number: int, asked: UnplannedRequest) -> None:
        """Begin the record of a request that is proposed to all ranks."""
        with self._lock:
            self._kept[number] = JobWindow(number, asked, self._leader, self._world_size)

    def conclude(self, made: Agreement) -> None:
        """Record and log the result of a proposal; a reason from a rank is put on one line."""
        with self._lock:
            if known := self._kept.get(made.number):
                known.made, known.is_changed = made, True
        left_out = sorted(made.left_out.items())
        absent = (f"rank {rank} takes no part: {printable(why)}" for rank, why in left_out)
        for text in (*absent, *made.remarks):
            self._journal.warning(f"request {made.number}: {text}")
        if made.step is not None:
            ranks = listed_ranks(made.ranks) if made.ranks else "no rank"
            text = f"{ranks} agreed on step {made.step} after {made.took_s * 1e3:,.0f} ms"
            self._journal.info(f"request {made.number}: {text}")

    def refuse_open(self, why: str) -> list[int]:
        """Refuse the requests that the ranks have not agreed on yet; return their numbers."""
        found = [number for number, one in (*self._kept.items(),) if one.made is None]
        for number in found:
            self.conclude(Agreement(number, reasons=(why,)))
        return found

    def wait_for(self, number: int, ranks: Mapping[int, str]) -> None:
        """Note the ranks that a proposal waits for, and why; log the first ones."""
        known = self._kept.get(number)
        if known and not known.not_ready:
            self._journal.info(f"request {number} waits for {'; '.join(grouped_reasons(ranks))}")
        if known:
            known.not_ready = dict(ranks)

    def receive(self, report: Report) -> None:
        """Record the report of a rank."""
        with self._lock:
            self._states[report.rank] = report.state
            self._heard_at = self._process.clock.wall_s()
            self.newest = max(self.newest, report.newest)
            for one in self._kept.values():
                one.is_changed |= one.unreachable.pop(report.rank, None) is not None
            if known := self._kept.get(report.number):
                self._add_report(known, report)

    def _add_report(self, known: JobWindow, report: Report) -> None:
        rank, before = report.rank, known.reports.get(report.rank)
        has_ended = before and before.outcome not in ("", *IN_PROGRESS)
        # A rank whose dynprof began again still has its capture.
        is_old = has_ended and report.outcome in ("", *IN_PROGRESS)
        if before == report or is_old or known.made is None:
            return
        known.reports[rank], known.is_changed = report, True
        is_news = before is None or before.outcome != report.outcome
        lost = known.lost if is_news and report.outcome in UNSERVED | GIVEN_UP else {}
        if rank in lost and len(lost) <= MAX_NAMED:
            text = f"rank {rank} has no capture of it: {lost[rank]}"
            self._journal.warning(f"request {known.number}: {text}")
            if rank != self._process.rank.number:  # that one has reported it itself
                about = {"rank": rank, "host": report.host, "pid": None}
                self._journal.events.report("failed", text, request=known.number, **about)

    def mark_lost(self, ranks: Collection[int], why: str = NO_ANSWER) -> None:
        """Note that these ranks do not report, until they do again."""
        with self._lock:
            for rank in ranks:
                self._states.pop(rank, None)
            for one in self._kept.values():
                if gone := one.pending.intersection(ranks):
                    one.unreachable |= dict.fromkeys(gone, why)
                    one.is_changed = True

    def drop_others(self, why: str) -> None:
        """Wait for no other rank any more; ``{}`` in the reason is the outcome there."""
        with self._lock:
            for one in self._kept.values():
                gone = {rank: why.format(one.outcome(rank)) for rank in one.pending - {LEADER}}
                if one.made and gone:
                    ranks = tuple(rank for rank in one.made.ranks if rank not in gone)
                    left_out = {**one.made.left_out, **gone}
                    one.made = replace(one.made, ranks=ranks, left_out=left_out)
                    one.is_changed = True

    def status(self) -> JobStatus:
        """Return the part of the status about all ranks."""
        with self._lock:
            states = Counter(self._states.values())
            states["missing"] = self._world_size - sum(states.values()) if states else 0
            known = [self._kept[number] for number in sorted(self._kept)[-MAX_IN_STATUS:]]
            recent = [one.status(self._shown(self._path(one))) for one in known]
            newest = recent.pop() if recent else WindowStatus()
            return JobStatus(
                ranks=self._world_size,
                states={state: count for state, count in sorted(states.items()) if count},
                heard_at=self._heard_at,
                earlier=tuple(recent),
                **vars(newest),
            )

    def _shown(self, path: Path | None) -> str:
        return os.path.relpath(path, self._process.layout.root) if path else ""

    def _path(self, known: JobWindow) -> Path | None:
        if known.steps is None:
            return None
        layout, edited_at_s = self._process.layout, known.asked.edit.edited_at_s
        place = delivery_of(known.asked.config, layout, self._process.rank).destination
        folder = place.staging_dir if isinstance(place.final, str) else place.final
        name = window_dir_name(*known.steps, edited_at_s, layout.role)
        return layout.window_record(folder / name)

    def write(self) -> None:
        """Write the records that are not on disk, at most once a second while reports come in."""
        with self._writing:
            now_s = self._process.clock.now_s()
            is_soon = now_s < self._wrote_s + 1.0
            with self._lock:
                changed = [one for one in self._kept.values() if one.is_changed]
                due = [one for one in changed if one.is_over or not (is_soon and one.written)]
                records = [(one, one.record()) for one in due]
                for one in due:
                    one.is_changed = False
            for one, record in records:
                path = self._path(one)
                if record and path and record != one.written:
                    self._wrote_s = now_s
                    self._write(one, record, path)
            self._forget()

    def _forget(self) -> None:
        """Drop old windows that are over, and some that the disk does not take."""
        with self._lock:
            for number in sorted(self._kept)[: -2 * MAX_IN_STATUS]:
                if self._kept[number].is_over:
                    del self._kept[number]

    def _write(self, known: JobWindow, record: WindowRecord, path: Path) -> None:
        delivery = delivery_of(known.asked.config, self._process.layout, self._process.rank)

        def save() -> None:
            self._process.layout.make_dir(path.parent)
            record.save(path)
            known.written = record
            if isinstance(delivery.destination.final, str) and known.is_over:
                order = delivery.record_order(path)
                self._deliveries.submit(DeliveryTask(order, on_end=end))

        def end(arrived: str, why: str) -> None:
            if not arrived:
                text = f"{path} has not arrived in {delivery.record_order(path).target}"
                self._journal.warning(f"{text}, and is here: {why}")

        if self._attempt("writing the record of a window", save):
            known.is_changed = True  # it is tried again
