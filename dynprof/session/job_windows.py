"""What the rank that leads knows of all ranks: where each is, and what became of a window there."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynprof.captures.manifest import RequestRecord
from dynprof.captures.window_record import WindowRecord
from dynprof.clock import iso
from dynprof.delivery.deliveries import Errand
from dynprof.delivery.order import delivery_of
from dynprof.files.layout import window_dir_name
from dynprof.journal.edit_outcomes import ON_THE_WAY, TOLD
from dynprof.journal.status import JobStatus, WindowStatus
from dynprof.session.known_window import NAMED, KnownWindow
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dynprof.captures.exporter import Attempt
    from dynprof.coordination.messages import Reply
    from dynprof.coordination.terms import Agreement
    from dynprof.delivery.deliveries import Deliveries
    from dynprof.delivery.order import Delivery
    from dynprof.requests.request import Asked
    from dynprof.windows.this_process import ThisProcess

UNWRITTEN = 16
"""Of so many windows, the newest, a record is tried again that could not be written."""
LONG_S = 2.0
"""Who holds a request up for so long is named in the log."""
UNHEARD = 4
"""So many windows, the newest, are asked about on in which a rank has fallen silent."""


class JobWindows:
    """Keeps the newest window of all ranks, and others until they are over; writes their records.

    The watcher's thread begins one while the coordinator's settles another, or hears of it.

    Args:
        process: This process.
        world_size: How many ranks there are.
        leader: Who leads: its rank, machine and config.
        attempt: Runs an action, and notes the exception that it ends with.
        deliveries: Sends records to where captures go, if that is no directory.
        warn: Called with what an operator should know.
    """

    def __init__(
        self,
        process: ThisProcess,
        world_size: int,
        leader: str,
        attempt: Attempt,
        deliveries: Deliveries,
        warn: Callable[[str], None],
    ) -> None:
        self._process, self._clock = process, process.clock
        self._attempt, self._deliveries, self._warn = attempt, deliveries, warn
        self._world_size, self._leader = world_size, leader
        self._lock = threading.RLock()  # a signal handler may call status() while it is held
        self._kept: dict[int, KnownWindow] = {}  # by their numbers; last which was asked about last
        self._past: dict[int, WindowStatus] = {}  # of those that are not kept any more, the newest
        self._replies: Mapping[int, Reply] = {}
        self._heard_at = 0.0
        self._held_up: dict[tuple[int, int], float] = {}  # since when a request waits for a rank
        self._written: dict[int, WindowRecord] = {}
        self._unwritten: set[int] = set()  # whose newest record could not be

    @property
    def number(self) -> int:
        """The request to ask about: each in turn of which there may be news; 0 for none."""
        with self._lock:
            agreed = [n for n, known in self._kept.items() if known.made]
            news = (n for n in agreed if self._kept[n].pending or self._kept[n].unheard)
            return next(news, agreed[0] if agreed else 0)

    @property
    def unused(self) -> int:
        """A number that no rank had for a request as they were heard last."""
        return 1 + max((one.newest for one in self._replies.values()), default=0)

    @property
    def under_way(self) -> int:
        """How many windows there may be news of, if ranks are on their way with any."""
        with self._lock:
            kept = self._kept.values()
            news = sum(bool(known.pending) or known.unheard for known in kept)
            return news if any(known.pending for known in kept) else 0

    @property
    def unheard(self) -> bool:
        """Whether ranks are missing that may have recorded a window, and say so yet."""
        with self._lock:
            return any(known.unheard for known in self._kept.values())

    @property
    def waits(self) -> tuple[int, ...]:
        """The requests with whose windows ranks are on their way."""
        with self._lock:
            return tuple(n for n, known in self._kept.items() if known.pending)

    @property
    def stands(self) -> bool:
        """Whether no rank that is on its way with a window steps or saves."""
        with self._lock:
            pending = [known for known in self._kept.values() if known.pending]
        return bool(pending) and all(known.stands for known in pending)

    def leave(self) -> None:
        """Bring the records to their end by what was heard: nothing more will be."""
        for number in self.waits:
            self._learn(number, is_left=True)

    def begin(self, number: int, asked: Asked) -> None:
        """Take a request that is proposed to all ranks."""
        with self._lock:
            self._kept[number] = KnownWindow(number, asked)
            self._forget()

    def settle(self, made: Agreement) -> None:
        """Take what came of a proposal."""
        self._learn(made.number, made=made)

    def wait_for(self, number: int, ranks: Mapping[int, str]) -> None:
        """Learn for which ranks a request waits before they agree, and why; tell if for long."""
        with self._lock:
            if number in self._kept:
                self._kept[number] = replace(self._kept[number], held_up=ranks)
        now_s, before = self._clock.now_s(), self._held_up
        self._held_up = {(number, rank): before.get((number, rank), now_s) for rank in ranks}
        late = sorted(one for one, since_s in self._held_up.items() if now_s >= since_s + LONG_S)
        self._held_up |= dict.fromkeys(late, math.inf)  # it is said once
        for _, rank in late[:NAMED]:
            self._warn(f"request {number} waits for rank {rank}: {ranks[rank]}")

    def hear(self, number: int, replies: Mapping[int, Reply]) -> None:
        """Learn where the ranks are, and what became of a request there, by rank."""
        with self._lock:
            self._replies = replies
            self._heard_at = self._clock.wall_s()
            known = self._kept.get(number, KnownWindow())
            if known.made is None:  # it was asked about before anybody was told of it
                return
            self._kept[number] = self._kept.pop(number)
        before = known.told or {}
        # A rank that is gone since has its capture all the same.
        ended = {rank: one for rank, one in before.items() if one.outcome not in ("", *ON_THE_WAY)}
        said = {rank: one for rank, one in replies.items() if one.outcome or rank not in ended}
        lost = self._learn(number, told={**ended, **said}).lost
        for rank in sorted(lost.keys() - known.lost.keys())[:NAMED]:
            self._warn(f"request {number}: rank {rank} has no capture of it: {lost[rank]}")

    def _learn(self, number: int, **news: Any) -> KnownWindow:
        """Take news of a window that is kept; return what is known of it then."""
        with self._lock:
            if number not in self._kept:
                return KnownWindow()
            known = self._kept[number] = replace(self._kept[number], **news)
        self._write(known)
        with self._lock:
            self._forget()
        return known

    def _forget(self) -> None:
        """Keep the newest, what is not over or still to be written, and whose silent may speak."""
        unheard = [n for n, known in self._kept.items() if known.unheard]
        keep = {max(self._kept), *sorted(self._unwritten)[-UNWRITTEN:], *sorted(unheard)[-UNHEARD:]}
        before = self._kept
        self._kept = {n: one for n, one in before.items() if n in keep or not one.is_over}
        past = {n: self._told(before[n]) for n in before.keys() - self._kept.keys()}
        self._past = dict(sorted({**self._past, **past}.items())[-TOLD:])
        self._unwritten &= self._kept.keys()
        self._written = {n: one for n, one in self._written.items() if n in self._kept}

    @property
    def _newest(self) -> KnownWindow:
        return self._kept[max(self._kept)] if self._kept else KnownWindow()

    def status(self) -> JobStatus:
        """Return what the status says of it."""
        with self._lock:
            known, replies, heard_at = self._newest, self._replies, self._heard_at
        states = Counter(one.state for one in replies.values())
        states["missing"] = self._world_size - len(replies) if replies else 0
        return JobStatus(
            ranks=self._world_size,
            states={state: count for state, count in sorted(states.items()) if count},
            heard_at=heard_at,
            earlier=tuple(self.told(but=known.number)),
            **vars(self._told(known)),
        )

    def told(self, but: int = 0) -> list[WindowStatus]:
        """Return what is to be said of the newest requests, the oldest first, but for one."""
        with self._lock:
            past, kept = self._past, [one for n, one in self._kept.items() if n != but]
        found = {**past, **{known.number: self._told(known) for known in kept}}
        return [found[number] for number in sorted(found)[-TOLD:]]

    def _told(self, known: KnownWindow) -> WindowStatus:
        path, ends = self._path(known), known.ends
        return WindowStatus(
            request=known.number,
            asked=len({*known.ranks, *known.missing}),
            saved=ends.pop("saved", 0),
            unsaved=ends,
            pending=len(known.pending) if known.made or not known.number else None,
            stragglers=known.stragglers,
            problems=known.made.reasons if known.made else (),
            remarks=known.remarks,
            record=os.path.relpath(path, self._process.layout.root) if path else "",
        )

    def _path(self, known: KnownWindow) -> Path | None:
        if known.agreed is None:
            return None
        first, _, asked = known.agreed
        name = window_dir_name(first, first + asked.config.active - 1, asked.edit.edited_at_s)
        place = self._delivery(asked).destination
        folder = place.workshop if isinstance(place.final, str) else place.final
        return self._process.layout.window_record(folder / name)

    def _delivery(self, asked: Asked) -> Delivery:
        return delivery_of(asked.config, self._process.layout, self._process.rank)

    def _write(self, known: KnownWindow) -> None:
        """Write a record, where it says what the file does not.

        A full disk keeps no rank from agreeing; it is tried again when the ranks are heard next.
        """
        path = self._path(known)
        if path is None or known.agreed is None:
            return
        number, record = known.number, self._record(known, *known.agreed)
        if record == self._written.get(number):
            return
        delivery = self._delivery(known.agreed[2])
        failed = self._attempt(
            "writing the record of a window",
            lambda: self._save(record, path, delivery, is_last=not known.pending),
        )
        with self._lock:
            if failed:
                self._unwritten.add(number)
            else:
                self._unwritten.discard(number)
                self._written[number] = record

    def _save(self, record: WindowRecord, path: Path, delivery: Delivery, *, is_last: bool) -> None:
        self._process.layout.make_dir(path.parent)
        record.save(path)
        if isinstance(delivery.destination.final, str) and is_last:
            order = delivery.record_order(path)

            def end(arrived: str, why: str) -> None:
                if not arrived:
                    self._warn(f"{path} has not arrived in {order.target}, and lies here: {why}")

            self._deliveries.submit(Errand(order, on_end=end))

    def _record(
        self, known: KnownWindow, first: int, made: Agreement, asked: Asked
    ) -> WindowRecord:
        config, missing = asked.config, known.missing
        ranks = {rank: known.record_of(rank) for rank in known.ranks if rank not in missing}
        return WindowRecord(
            dynprof=__version__,
            leader=self._leader,
            world_size=self._world_size,
            request=RequestRecord(
                number=known.number,
                edited_at=iso(asked.edit.edited_at_s),
                sha256=hashlib.sha256(asked.edit.raw).hexdigest(),
                config=config.to_json(),
            ),
            start_step=made.step,
            first=first,
            last=first + config.active - 1,
            asked=tuple(sorted({*made.ranks, *made.left_out})),
            ranks=ranks,
            missing=dict(sorted(missing.items())),
            agreed_ms=round(made.took_s * 1e3, 3),
            remarks=made.remarks,
            complete=not missing and all(one.is_whole for one in ranks.values()),
        )
