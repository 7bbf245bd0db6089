"""What the ranks of a job say to each other about a window; JSON, checked as it is read."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator


@dataclass(frozen=True, slots=True)
class Profiler:
    """What a rank records with.

    Attributes:
        backend: Its name.
        activities: What it watches.
    """

    backend: str
    activities: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.backend} ({', '.join(self.activities)})"


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a rank was in the collectives of its process group as a step had ended.

    Attributes:
        step: The number of the next.
        collectives: How many the group had begun.
        of_step: How many of these in the step that had ended; None where that is not known.
        is_exact: Whether nothing else is among them, as what one rank sends to another: then they
            are the same on all ranks.
    """

    step: int
    collectives: int
    of_step: int | None = None
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A config that the leader has accepted: who can serve it, and when?

    Attributes:
        number: That of the request, counted by the leader; so in all messages.
        config: Its text.
        edited_at_s: When it was saved, in seconds since the epoch.
        patience_s: How long a rank may take until it is free for a window.
        ranks: Those that were chosen; empty where the config names them.
        profiler: What all of them can record with; None where each takes what it has.
    """

    number: int
    config: str
    edited_at_s: float
    patience_s: float
    ranks: str = ""
    profiler: Profiler | None = None
    kind: Literal["proposal"] = "proposal"


@dataclass(frozen=True, slots=True)
class Question:
    """Where is each rank now, and what became of that request there?

    Attributes:
        superseded: Requests that nobody is to wait with any more, whoever was away meanwhile: from
            one to another, both included.
    """

    number: int
    superseded: tuple[tuple[int, int], ...] = ()
    kind: Literal["question"] = "question"


@dataclass(frozen=True, slots=True)
class Opening:
    """All open at this step.

    Attributes:
        step: The step.
        left_out: Why not, for each rank that was asked for and takes no part.
        renumber: By how many each rank's number of a step is to change, where it is not the
            leader's.
        superseded: As in a question; this one takes their place, also where it is not asked for.
    """

    number: int
    step: int
    left_out: dict[int, str]
    renumber: dict[int, int] = field(default_factory=dict)
    superseded: tuple[tuple[int, int], ...] = ()
    kind: Literal["opening"] = "opening"


GivenUp = Literal["refused", "superseded", "disarmed"]


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """There will be no window.

    Attributes:
        reasons: Why.
        config: The text that was refused where it was saved; None where none was.
        outcome: What became of it so.
    """

    number: int
    reasons: tuple[str, ...]
    config: str | None = None
    outcome: GivenUp = "refused"
    kind: Literal["withdrawal"] = "withdrawal"


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Disarm what waits, close what is open.

    Attributes:
        config: The text that asks for it.
        edited_at_s: When it was saved, in seconds since the epoch.
    """

    number: int
    config: str
    edited_at_s: float
    kind: Literal["cancellation"] = "cancellation"


@dataclass(frozen=True, slots=True)
class Rejoin:
    """For whoever was away until messages were gone, or has joined the leader before."""

    kind: Literal["rejoin"] = "rejoin"


@dataclass(frozen=True, slots=True)
class Farewell:
    """The leader leads no more.

    Attributes:
        why: In words.
    """

    why: str = "nobody leads the ranks any more"
    kind: Literal["farewell"] = "farewell"


Message = Proposal | Question | Opening | Withdrawal | Cancellation | Rejoin | Farewell


Same = TypeVar("Same", Profiler, Mark)


@functools.lru_cache(maxsize=1024)
def _one_of_each(same: Same) -> Same:
    """Return the first that was like it: ranks say much the same, and there are many."""
    return same


_Profiler = Annotated[Profiler, AfterValidator(_one_of_each)]
_Mark = Annotated[Mark, AfterValidator(_one_of_each)]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a rank says to a message.

    Attributes:
        rank: Its number.
        problem: Why it cannot do what was asked of it; empty where it can.
        takes_part: Whether it is to record.
        step: The number of the step that is running.
        step_s: How long its steps take, in seconds; None where it does not know yet.
        still_s: For how long this one has been running.
        at_s: When it says so, in seconds of a clock of its own.
        host: Its machine.
        state: That of its status.
        outcome: What became of the request on it so far; empty where it was not asked of it.
        capture: The manifest of that, on its machine; empty where there is none.
        cut: Why that has not all steps; empty where it has.
        why: What is said of that outcome there.
        busy: Why it is not free yet to record; empty where it is.
        would: What it would record the proposal with; None where it takes no part.
        usable: All that it could record with.
        mark: The newest; None where none is known.
        newest: The highest number of a request there.
    """

    rank: int
    problem: str = ""
    takes_part: bool = False
    step: int = 0
    step_s: float | None = None
    still_s: float = 0.0
    at_s: float = 0.0
    host: str = ""
    state: str = ""
    outcome: str = ""
    capture: str = ""
    cut: str = ""
    why: str = ""
    busy: str = ""
    would: _Profiler | None = None
    usable: tuple[_Profiler, ...] = ()
    mark: _Mark | None = None
    newest: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """What a rank says once as it begins to listen.

    Attributes:
        rank: Its number.
        place: That of the first message that it listens for.
    """

    rank: int
    place: int


@dataclass(frozen=True, slots=True)
class Parted:
    """What a rank says as it listens no more.

    Attributes:
        number: A request that it heard of.
        reply: Where it was, and what became of that request.
    """

    number: int
    reply: Reply
