"""What the rank that leads knows of one window on all ranks at one moment; pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.captures.window_record import RankRecord
from dynprof.coordination.terms import SILENT
from dynprof.journal.edit_outcomes import ON_THE_WAY, in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynprof.coordination.messages import Reply
    from dynprof.coordination.terms import Agreement
    from dynprof.requests.request import Asked

NO_ANSWER, FORGOTTEN = "it does not answer", "it knows nothing of the request: it began anew"
LEFT = "dynprof ended on the rank that leads while it was {} here"
STANDS_S = 3.0
"""Who has been in a step for so long, and for three times its usual one, may wait for others."""
UNSERVED, GIVEN_UP = {"refused", "not served", "failed"}, {"superseded", "disarmed"}
"""How a window ends without a capture: by what happens to that rank; by a request after it."""
NO_PART = {"", "refused", "not asked"}
"""What a rank says of a window that it does not record."""
BEGUN = {"open", "saving", "saved", "failed", "refused"}
"""What a rank says of a window whose step has come there."""
NAMED = 16
"""So many ranks the status names; the record of the window has all."""


@dataclass(frozen=True)
class KnownWindow:
    """What is known of one request at one moment.

    Attributes:
        number: Its own; 0 for none.
        asked: What it asks for.
        made: What came of that; None while the ranks have not agreed.
        told: What the ranks said of it last, by rank; None while they were not asked.
        held_up: Why ranks are waited for that have to agree yet.
        is_left: Whether nothing more is heard of it, as the rank that leads ends.
    """

    number: int = 0
    asked: Asked | None = None
    made: Agreement | None = None
    told: Mapping[int, Reply] | None = None
    held_up: Mapping[int, str] = field(default_factory=dict)
    is_left: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that were to open, and who has done so though nobody heard of him in time."""
        if self.made is None:
            return ()
        late = [rank for rank in self.made.left_out if self._said(rank) not in NO_PART]
        return tuple(sorted({*self.made.ranks, *late})) if late else self.made.ranks

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
        return [] if self.is_left else self._unfinished

    @property
    def _unfinished(self) -> list[int]:
        return [rank for rank in self.ranks if self.outcome(rank) in ON_THE_WAY]

    @property
    def ends(self) -> dict[str, int]:
        """How it ended, and on how many ranks so; who is missing is not among them."""
        missing = self.missing  # once: it looks at all ranks
        outcomes = Counter(self.outcome(rank) for rank in self.ranks if rank not in missing)
        return {one: outcomes[one] for one in sorted(outcomes.keys() - {*ON_THE_WAY})}

    @property
    def stands(self) -> bool:
        """Whether none of those steps or saves."""
        on_the_way = [(self.told or {}).get(rank) for rank in self.pending]
        return all(one and one.outcome != "saving" and _stands(one) for one in on_the_way)

    def _said(self, rank: int) -> str:
        return self.told[rank].outcome if self.told and rank in self.told else ""

    def outcome(self, rank: int) -> str:
        """Return what became of it on a rank that was to open; empty where nobody can tell."""
        return "waiting" if self.told is None else self._said(rank)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it on any rank."""
        return self.made is not None and not self.pending

    @property
    def missing(self) -> dict[int, str]:
        """Why a rank takes no part, or no more."""
        left_out, ranks = self.made.left_out if self.made else {}, self.ranks
        found = {rank: why for rank, why in left_out.items() if rank not in ranks}
        for rank in ranks:
            if not self.outcome(rank):
                found[rank] = FORGOTTEN if rank in (self.told or {}) else NO_ANSWER
        found |= self.lost
        if self.is_left:
            found |= {rank: LEFT.format(self.outcome(rank)) for rank in self._unfinished}
        return found

    @property
    def lost(self) -> dict[int, str]:
        """Why ranks that had agreed have no capture of it.

        Where all that wait with it give it up for a request after it, no rank has lost it.
        """
        told = self.told or {}
        said = {rank: told[rank] for rank in self.ranks if rank in told}
        has_begun = any(one.outcome in BEGUN for one in said.values())
        ends = UNSERVED | GIVEN_UP if has_begun else UNSERVED
        ended = {rank: one for rank, one in said.items() if one.outcome in ends}
        return {rank: in_words(one.outcome, one.why) for rank, one in ended.items()}

    @property
    def unheard(self) -> bool:
        """Whether a rank is missing that may have recorded it, and has said nothing since."""
        told = self.told or {}
        silent = {rank for rank, why in self.missing.items() if why in (NO_ANSWER, SILENT)}
        return not silent <= told.keys()

    @property
    def stragglers(self) -> dict[int, str]:
        """Who is waited for, is missing, or is not done where most are."""
        if self.made is None:
            return {
                rank: f"waited for: {why}" for rank, why in sorted(self.held_up.items())[:NAMED]
            }
        found, pending = self.missing, self.pending
        if self.told is not None and len(pending) * 2 <= len(self.ranks):
            found |= {rank: f"still {_doing(self.told[rank])}" for rank in pending}
        return dict(sorted(found.items())[:NAMED])

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was noticed as they agreed, and who has not all the steps."""
        told = sorted((self.told or {}).items())
        cut = [f"rank {rank} was cut short: {one.cut}" for rank, one in told if one.cut]
        return (*(self.made.remarks if self.made else ()), *cut)[:NAMED]

    def record_of(self, rank: int) -> RankRecord:
        """Return what the record of the window says of a rank that takes part."""
        reply = (self.told or {}).get(rank)
        return RankRecord(
            host=reply.host if reply else "",
            outcome=self.outcome(rank),
            capture=reply.capture if reply else "",
            cut=reply.cut if reply else "",
        )


def _doing(reply: Reply) -> str:
    """Return what a rank does with it; its state may be that of another window."""
    return reply.state if reply.outcome == "open" or reply.state == "sending" else reply.outcome


def _stands(reply: Reply) -> bool:
    return reply.still_s > max(STANDS_S, 3 * (reply.step_s or 0.0))
