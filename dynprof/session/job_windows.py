"""What the rank that leads knows of all ranks: where each is, and what became of a window there."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dynprof.captures.manifest import RequestRecord
from dynprof.captures.window_record import RankRecord, WindowRecord
from dynprof.delivery.deliveries import Errand
from dynprof.delivery.order import delivery_of
from dynprof.files.layout import window_dir_name
from dynprof.journal.edit_outcomes import ON_THE_WAY
from dynprof.journal.status import JobStatus
from dynprof.process.clock import iso
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynprof.captures.exporter import Attempt
    from dynprof.coordination.leader import Agreement
    from dynprof.coordination.messages import Reply
    from dynprof.delivery.deliveries import Deliveries
    from dynprof.delivery.order import Delivery
    from dynprof.requests.request import Asked
    from dynprof.windows.this_process import ThisProcess

NO_ANSWER, FORGOTTEN = "it does not answer", "it knows nothing of the request: it began anew"
NAMED = 16
"""So many ranks the status names; the record of the window has all."""


@dataclass(frozen=True)
class _Known:
    """What is known at one moment; other threads read it while the next is made.

    Attributes:
        number: The newest request that was proposed.
        asked: What it asks for.
        made: What came of that; None while the ranks have not agreed.
        replies: What the ranks said last, by rank.
        told_of: The request of which they told.
        heard_at: When, in seconds since the epoch.
    """

    number: int = 0
    asked: Asked | None = None
    made: Agreement | None = None
    replies: Mapping[int, Reply] = field(default_factory=dict)
    told_of: int = 0
    heard_at: float = 0.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that were to open."""
        return self.made.ranks if self.made else ()

    @property
    def agreed(self) -> tuple[int, Agreement, Asked] | None:
        """The first step that they record, if they agreed, and on what."""
        made, asked = self.made, self.asked
        if made is None or asked is None or made.step is None:
            return None
        return made.step + asked.config.warmup, made, asked

    @property
    def pending(self) -> list[int]:
        """Those that are on their way."""
        return [rank for rank in self.ranks if self.outcome(rank) in ON_THE_WAY]

    def outcome(self, rank: int) -> str:
        """Return what became of it on a rank that was to open; empty where nobody can tell."""
        if self.told_of != self.number:
            return "waiting"
        return self.replies[rank].outcome if rank in self.replies else ""

    @property
    def missing(self) -> dict[int, str]:
        """Why a rank takes no part, or no more."""
        found = dict(self.made.left_out) if self.made else {}
        for rank in self.ranks:
            if not self.outcome(rank):
                found[rank] = FORGOTTEN if rank in self.replies else NO_ANSWER
        return found

    @property
    def stragglers(self) -> dict[int, str]:
        """Who is missing, and who is not done where most are."""
        found, pending = self.missing, self.pending
        if self.told_of == self.number and len(pending) * 2 <= len(self.ranks):
            found |= {rank: f"still {self.replies[rank].state}" for rank in pending}
        return dict(sorted(found.items())[:NAMED])


class JobWindows:
    """Keeps the newest window of all ranks, and writes its record.

    Args:
        process: This process.
        world_size: How many ranks there are.
        leader: Who leads: its rank, machine and config.
        attempt: Runs an action, and notes the exception that it ends with.
        deliveries: Sends records to where captures go, if that is no directory.
    """

    def __init__(
        self,
        process: ThisProcess,
        world_size: int,
        leader: str,
        attempt: Attempt,
        deliveries: Deliveries,
    ) -> None:
        self._process, self._clock = process, process.clock
        self._attempt, self._deliveries = attempt, deliveries
        self._world_size, self._leader = world_size, leader
        self._known = _Known()
        self._written: WindowRecord | None = None

    @property
    def number(self) -> int:
        """The newest request that was proposed; 0 for none."""
        return self._known.number

    @property
    def waits(self) -> bool:
        """Whether ranks are on their way with the newest window."""
        return bool(self._known.pending)

    def begin(self, number: int, asked: Asked) -> None:
        """Take a request that is proposed to all ranks."""
        self._known = replace(self._known, number=number, asked=asked, made=None)

    def settle(self, made: Agreement) -> None:
        """Take what came of a proposal."""
        if made.number == self.number:
            self._known = replace(self._known, made=made)
            self._write()

    def hear(self, number: int, replies: Mapping[int, Reply]) -> None:
        """Learn where the ranks are, and what became of a request there, by rank."""
        heard_at = self._clock.wall_s()
        self._known = replace(self._known, replies=replies, told_of=number, heard_at=heard_at)
        self._write()

    def status(self) -> JobStatus:
        """Return what the status says of it."""
        known = self._known
        states = Counter(one.state for one in known.replies.values())
        states["missing"] = self._world_size - len(known.replies) if known.replies else 0
        path = self._path(known)
        return JobStatus(
            ranks=self._world_size,
            states={state: count for state, count in sorted(states.items()) if count},
            request=known.number,
            asked=len({*known.ranks, *known.missing}),
            saved=sum(known.outcome(rank) == "saved" for rank in known.ranks),
            pending=len(known.pending) if known.made or not known.number else None,
            stragglers=known.stragglers,
            problems=known.made.reasons if known.made else (),
            record=os.path.relpath(path, self._process.layout.root) if path else "",
            heard_at=known.heard_at,
        )

    def _path(self, known: _Known) -> Path | None:
        if known.agreed is None:
            return None
        first, _, asked = known.agreed
        name = window_dir_name(first, first + asked.config.active - 1, asked.edit.edited_at_s)
        place = self._delivery(asked).destination
        folder = place.workshop if isinstance(place.final, str) else place.final
        return self._process.layout.window_record(folder / name)

    def _delivery(self, asked: Asked) -> Delivery:
        return delivery_of(asked.config, self._process.layout, self._process.rank)

    def _write(self) -> None:
        """Write the record, where it says anything new; a full disk keeps no rank from agreeing."""
        known = self._known
        path = self._path(known)
        if path is None or known.agreed is None:
            return
        record = self._record(known, *known.agreed)
        if record != self._written:
            self._written = record
            delivery = self._delivery(known.agreed[2])
            self._attempt(
                "writing the record of a window", lambda: self._save(record, path, delivery)
            )

    def _save(self, record: WindowRecord, path: Path, delivery: Delivery) -> None:
        self._process.layout.make_dir(path.parent)
        record.save(path)
        if isinstance(delivery.destination.final, str) and not self.waits:
            self._deliveries.submit(Errand(delivery.record_order(path)))

    def _record(self, known: _Known, first: int, made: Agreement, asked: Asked) -> WindowRecord:
        config, missing = asked.config, known.missing
        ranks = {rank: _rank(known, rank) for rank in made.ranks if rank not in missing}
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
            first=first,
            last=first + config.active - 1,
            asked=tuple(sorted({*made.ranks, *made.left_out})),
            ranks=ranks,
            missing=dict(sorted(missing.items())),
            agreed_ms=round(made.took_s * 1e3, 3),
            complete=not missing and all(one.outcome == "saved" for one in ranks.values()),
        )


def _rank(known: _Known, rank: int) -> RankRecord:
    reply = known.replies.get(rank) if known.told_of == known.number else None
    return RankRecord(
        host=reply.host if reply else "",
        outcome=known.outcome(rank),
        capture=reply.capture if reply else "",
    )
