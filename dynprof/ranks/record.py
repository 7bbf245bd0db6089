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
from typing import TYPE_CHECKING, Any

from dynprof.captures.deliveries import DeliveryTask
from dynprof.captures.delivery_order import delivery_of
from dynprof.captures.manifest import RequestRecord
from dynprof.captures.window_record import RankRecord, WindowRecord
from dynprof.journal.edit_outcomes import IN_PROGRESS, MAX_IN_STATUS, in_words
from dynprof.journal.journal import printable
from dynprof.journal.status import JobStatus, WindowStatus
from dynprof.ranks.agreement_rules import MAX_NAMED, Agreement, grouped_reasons
from dynprof.ranks.messages import Report
from dynprof.runtime.clock import iso
from dynprof.runtime.layout import window_dir_name
from dynprof.runtime.plural import listed_ranks
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from dynprof.captures.deliveries import Deliveries
    from dynprof.captures.delivery_order import Delivery
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


@dataclass(frozen=True)
class JobWindow:
    """One request on all ranks."""

    number: int = 0  # 0 for none
    asked: UnplannedRequest | None = None  # the request
    made: Agreement | None = None  # the result of the proposal; None while it is under way
    reports: dict[int, Report] = field(default_factory=dict)  # the newest report of each rank
    # Ranks that no longer report, and that delay the start; each with the reason.
    unreachable: Mapping[int, str] = field(default_factory=dict)
    not_ready: Mapping[int, str] = field(default_factory=dict)

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
    def is_stalled(self) -> bool:
        """Whether no pending rank steps or saves."""
        return all(
            one is None or (one.outcome != "saving" and _is_stalled(one))
            for one in map(self.reports.get, self.pending)
        )

    @property
    def stragglers(self) -> dict[int, str]:
        """The ranks that others wait for, that are missing, or that are slower than most."""
        if self.made is None:
            waits = sorted(self.not_ready.items())[:MAX_NAMED]
            return {rank: f"waited for: {why}" for rank, why in waits}
        found, pending = self.missing, self.pending
        if len(pending) * 2 <= len(self.ranks):
            found |= {
                r: f"still {_activity(self.reports[r])}" for r in pending if r in self.reports
            }
        return dict(sorted(found.items())[:MAX_NAMED])

    @property
    def remarks(self) -> tuple[str, ...]:
        """Ranks that may have recorded other steps, and captures that were cut short."""
        made, told = self.made.remarks if self.made else (), sorted(self.reports.items())
        cut = [f"rank {r} was cut short: {one.cut}" for r, one in told if one.cut]
        return (*made, *cut[:MAX_NAMED])

    def status(self, record: str) -> WindowStatus:
        """Return its part of the status, which names the path of its record."""
        missing, ranks = self.missing, self.ranks
        ends = Counter(self.outcome(rank) for rank in ranks if rank not in missing)
        saved = ends.pop("saved", 0)
        return WindowStatus(
            request=self.number,
            asked=len({*ranks, *missing}),
            saved=saved,
            unsaved={one: ends[one] for one in sorted(ends.keys() - {*IN_PROGRESS})},
            pending=len(self.pending) if self.made or not self.number else None,
            stragglers=self.stragglers,
            problems=self.made.reasons if self.made else (),
            remarks=self.remarks,
            record=record,
        )

    def record(self, leader: str, world_size: int) -> WindowRecord | None:
        """Return its record; None if the ranks have not agreed on a step."""
        made, asked = self.made, self.asked
        if made is None or asked is None or made.step is None:
            return None
        config, missing, first = asked.config, self.missing, made.step + asked.config.warmup
        ranks = {rank: self._on(rank) for rank in self.ranks if rank not in missing}
        return WindowRecord(
            dynprof=__version__,
            leader=leader,
            world_size=world_size,
            request=RequestRecord(
                number=self.number,
                edited_at=iso(asked.edit.edited_at_s),
                sha256=hashlib.sha256(asked.edit.raw).hexdigest(),
                config=config.to_json(),
                trigger=asked.edit.trigger,
            ),
            start_step=made.step,
            first=first,
            last=first + config.active - 1,
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
    return report.still_s > max(STALLED_S, 3 * (report.step_s or 0.0))


class JobWindows:
    """The newest windows of all ranks, and their records on disk."""

    def __init__(
        self,
        process: ProcessContext,
        world_size: int,
        leader: str,  # rank, machine and config of this process
        attempt: Attempt,
        deliveries: Deliveries,
        journal: Journal,
    ) -> None:
        self._process, self._attempt, self._deliveries = process, attempt, deliveries
        self._journal, self._world_size, self._leader = journal, world_size, leader
        self._lock = threading.RLock()  # a signal handler may call status() while it is held
        self._kept: dict[int, JobWindow] = {}
        self._states: dict[int, str] = {}
        self._heard_at = 0.0
        self._written: dict[int, WindowRecord] = {}
        self._unwritten: set[int] = set()  # numbers whose newest record is not on disk
        self._wrote_s = -math.inf

    @property
    def pending(self) -> dict[int, set[int]]:
        """The pending ranks of each window, by its number."""
        with self._lock:
            return {n: one.pending for n, one in self._kept.items() if one.pending}

    @property
    def is_stalled(self) -> bool:
        """Whether no pending rank steps or saves."""
        with self._lock:
            return all(one.is_stalled for one in self._kept.values() if one.pending)

    def begin(self, number: int, asked: UnplannedRequest) -> None:
        """Begin the record of a request that is proposed to all ranks."""
        with self._lock:
            self._kept[number] = JobWindow(number, asked)
            self._forget()

    def conclude(self, made: Agreement) -> None:
        """Record and log the result of a proposal; a reason from a rank is put on one line."""
        self._learn(made.number, made=made)
        left_out = sorted(made.left_out.items())
        absent = (f"rank {rank} takes no part: {printable(why)}" for rank, why in left_out)
        for text in (*absent, *made.remarks):
            self._journal.warning(f"request {made.number}: {text}")
        if made.step is not None:
            ranks = listed_ranks(made.ranks) if made.ranks else "no rank"
            text = f"{ranks} agreed on step {made.step} after {made.took_s * 1e3:,.0f} ms"
            self._journal.info(f"request {made.number}: {text}")

    def wait_for(self, number: int, ranks: Mapping[int, str]) -> None:
        """Note the ranks that a proposal waits for, and why; log the first ones."""
        with self._lock:
            known = self._kept.get(number)
            self._learn(number, not_ready=dict(ranks))
        if known and not known.not_ready:
            self._journal.info(f"request {number} waits for {'; '.join(grouped_reasons(ranks))}")

    def receive(self, report: Report) -> None:
        """Record the report of a rank."""
        with self._lock:
            self._states[report.rank] = report.state
            self._heard_at = self._process.clock.wall_s()
            for number, one in self._kept.items():
                if report.rank in one.unreachable:
                    gone = {r: why for r, why in one.unreachable.items() if r != report.rank}
                    self._learn(number, unreachable=gone)
            known = self._kept.get(report.number)
            if known:
                self._add_report(known, report)

    def _add_report(self, known: JobWindow, report: Report) -> None:
        rank, before = report.rank, known.reports.get(report.rank)
        has_ended = before and before.outcome not in ("", *IN_PROGRESS)
        # A rank whose dynprof began again still has its capture.
        is_old = has_ended and report.outcome in ("", *IN_PROGRESS)
        if before == report or is_old or known.made is None:
            return
        known.reports[rank] = report
        self._unwritten.add(known.number)
        if before is None or before.outcome != report.outcome:
            lost = known.lost if report.outcome in UNSERVED | GIVEN_UP else {}
            if rank in lost and known.made and len(lost) <= MAX_NAMED:
                text = f"rank {rank} has no capture of it: {lost[rank]}"
                self._journal.warning(f"request {known.number}: {text}")
                if rank != self._process.rank.number:  # that one has reported it itself
                    about = {"rank": rank, "host": report.host, "pid": None}
                    self._journal.events.report("failed", text, request=known.number, **about)

    def mark_lost(self, ranks: Collection[int], why: str = NO_ANSWER) -> None:
        """Note that these ranks do not report any more."""
        with self._lock:
            for rank in ranks:
                self._states.pop(rank, None)
            for number, pending in self.pending.items():
                gone = {rank: why for rank in ranks if rank in pending}
                self._learn(number, unreachable={**self._kept[number].unreachable, **gone})

    def refuse_open(self, why: str) -> None:
        """Refuse the requests that the ranks have not agreed on yet."""
        for number in [n for n, one in (*self._kept.items(),) if one.made is None]:
            self.conclude(Agreement(number, reasons=(why,)))

    def leave(self) -> None:
        """Complete the records with what is known: no more reports will come."""
        for number, ranks in self.pending.items():
            known = self._kept[number]
            left = {rank: LEFT.format(known.outcome(rank)) for rank in ranks}
            self._learn(number, unreachable={**known.unreachable, **left})

    def _learn(self, number: int, **news: Any) -> None:
        with self._lock:
            if number in self._kept:
                self._kept[number] = replace(self._kept[number], **news)
                self._unwritten.add(number)

    def _forget(self) -> None:
        """Drop all but the newest windows and those that are not over or not written."""
        keep = {*sorted(self._kept)[-MAX_IN_STATUS:], *sorted(self._unwritten)[-MAX_IN_STATUS:]}
        self._kept = {n: one for n, one in self._kept.items() if n in keep or not one.is_over}
        self._unwritten &= self._kept.keys()
        self._written = {n: one for n, one in self._written.items() if n in self._kept}

    def status(self) -> JobStatus:
        """Return the part of the status about all ranks."""
        with self._lock:
            known = self._kept[max(self._kept)] if self._kept else JobWindow()
            states = Counter(self._states.values())
            states["missing"] = self._world_size - sum(states.values()) if states else 0
            return JobStatus(
                ranks=self._world_size,
                states={state: count for state, count in sorted(states.items()) if count},
                heard_at=self._heard_at,
                earlier=tuple(one for one in self.recent() if one.request != known.number),
                **vars(self._status(known)),
            )

    def recent(self) -> list[WindowStatus]:
        """Return the states of the newest requests, the oldest first."""
        with self._lock:
            return [
                self._status(self._kept[number]) for number in sorted(self._kept)[-MAX_IN_STATUS:]
            ]

    def _status(self, known: JobWindow) -> WindowStatus:
        path = self._path(known)
        return known.status(os.path.relpath(path, self._process.layout.root) if path else "")

    def _delivery(self, asked: UnplannedRequest) -> Delivery:
        return delivery_of(asked.config, self._process.layout, self._process.rank)

    def _path(self, known: JobWindow) -> Path | None:
        made, asked = known.made, known.asked
        if made is None or asked is None or made.step is None:
            return None
        first = made.step + asked.config.warmup
        last, layout = first + asked.config.active - 1, self._process.layout
        name = window_dir_name(first, last, asked.edit.edited_at_s, layout.role)
        place = self._delivery(asked).destination
        folder = place.staging_dir if isinstance(place.final, str) else place.final
        return layout.window_record(folder / name)

    def write(self) -> None:
        """Write the records that are not on disk, at most once a second while reports come in."""
        now_s = self._process.clock.now_s()
        with self._lock:
            news = [self._kept[n] for n in sorted(self._unwritten & self._kept.keys())]
            is_soon = now_s < self._wrote_s + 1.0
            before = self._written.keys() if is_soon else ()
            news = [one for one in news if one.is_over or one.number not in before]
            records = [(one, one.record(self._leader, self._world_size)) for one in news]
        for one, record in records:
            self._wrote_s = now_s if record else self._wrote_s
            self._write(one, record)
        with self._lock:
            self._forget()

    def _write(self, known: JobWindow, record: WindowRecord | None) -> None:
        path = self._path(known)
        is_news = record != self._written.get(known.number)
        if record and is_news and path and known.asked:
            delivery, is_last = self._delivery(known.asked), known.is_over
            if self._attempt(
                "writing the record of a window",
                lambda: self._save(record, path, delivery, is_last=is_last),
            ):
                return  # it is tried again
            self._written[known.number] = record
        self._unwritten.discard(known.number)

    def _save(self, record: WindowRecord, path: Path, delivery: Delivery, *, is_last: bool) -> None:
        self._process.layout.make_dir(path.parent)
        record.save(path)
        if isinstance(delivery.destination.final, str) and is_last:
            order = delivery.record_order(path)

            def end(arrived: str, why: str) -> None:
                if not arrived:
                    self._journal.warning(
                        f"{path} has not arrived in {order.target}, and is here: {why}"
                    )

            self._deliveries.submit(DeliveryTask(order, on_end=end))
