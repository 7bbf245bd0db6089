"""What the ranks of a job say to each other about a window, as lines of JSON.

The leader (rank 0) says a :class:`Said` to all: a proposal, then an opening or a withdrawal. Each
rank answers a proposal and a question with a :class:`Reply`, and tells on its own what becomes of
its window with a :class:`Report`.
"""

from __future__ import annotations

import contextlib
from typing import Literal

import msgspec

from dynprof.config.file_reading import MAX_BYTES

MOST_BYTES = 7 * MAX_BYTES
"""Of one message: JSON takes up to six bytes for one of a config; torch's store takes 8 MiB."""
NO_DYNPROF, SILENT = "it does not run dynprof", "it did not answer in time"
PARTED = "it has left the process group, or dynprof has ended on it"
"""Why a rank takes no part that has said nothing itself."""


class _Message(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """A line; its ``type`` says which."""


class Profiler(msgspec.Struct, frozen=True):
    """What a rank records with: a backend and its activities."""

    backend: str
    activities: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.backend} ({', '.join(self.activities)})"


class Hello(_Message, frozen=True):
    """A leader begins; each rank joins it."""

    who: str  # its rank, machine and config


class Proposal(_Message, frozen=True):
    """A config that the leader has accepted: who can serve it, and when?"""

    number: int  # of the request, counted by the leader; the same in all messages
    config: str  # its text
    edited_at_s: float  # when it was saved, in seconds since the epoch
    ranks: str = ""  # the chosen ones; empty where the config names them
    profiler: Profiler | None = None  # what all can record with; None where each takes what it has
    begun: tuple[tuple[int, int], ...] = ()
    """The leader's newest steps, with how many collectives it had begun as they began; empty but
    where dynprof was attached to it."""


class Question(_Message, frozen=True):
    """Where is each rank now, and what became of that request there?"""

    number: int


class Opening(_Message, frozen=True):
    """All open at this step."""

    number: int
    step: int
    left_out: dict[int, str] = {}  # why not, for each requested rank that takes no part
    superseded: tuple[int, ...] = ()  # requests that no rank waits with any longer


GivenUp = Literal["refused", "superseded", "disarmed"]


class Withdrawal(_Message, frozen=True):
    """There will be no window."""

    number: int
    reasons: tuple[str, ...]
    config: str | None = None  # its text, where it was refused before any rank was asked
    outcome: GivenUp = "refused"  # what became of the request


class Cancellation(_Message, frozen=True):
    """Disarm what waits, close what is open."""

    number: int
    config: str  # the text that asks for it
    edited_at_s: float


class Farewell(_Message, frozen=True):
    """The leader leads no longer."""


Message = Hello | Proposal | Question | Opening | Withdrawal | Cancellation | Farewell


class Said(msgspec.Struct, frozen=True):
    """What a leader says."""

    by: str  # the token of the leader's run; another run is another leader
    expect: int  # the reply that brings the count to this number wakes the leader
    message: Message


class Report(_Message, frozen=True):
    """What became of a request on a rank, and what the rank does."""

    rank: int
    number: int = 0  # of the request; 0 for none
    host: str = ""
    newest: int = 0  # the highest number of a request there
    state: str = ""  # of the rank, as in its status
    outcome: str = ""  # of the request so far; empty where the rank knows nothing of it
    capture: str = ""  # the manifest, on the rank's machine; empty for none
    cut: str = ""  # why the capture has not all steps; empty where it has
    why: str = ""  # what the rank says of the outcome
    still_s: float = 0.0  # for how long its step has been running
    step_s: float | None = None  # how long its steps take, in seconds; None while unknown


class Reply(_Message, frozen=True):
    """What a rank says to a proposal or a question."""

    rank: int
    place: int  # of the message that it answers
    report: Report  # what became of the request so far
    problem: str = ""  # why the rank cannot record; empty where it can
    takes_part: bool = False  # whether it is to record
    busy: str = ""  # why it is not free yet; empty where it is
    step: int = 0  # the number of the step that is running
    fast_s: float | None = None  # how long its steps take at the fastest; None while unknown
    is_alone: bool = False  # whether dynprof, attached to it, numbers its steps unlike the leader's
    marches: bool = False  # whether each step has a collective, so that the ranks step together
    would: Profiler | None = None  # what it would record with; None where it takes no part
    usable: tuple[Profiler, ...] = ()  # all that it could record with
    again: bool = False  # whether it replied to that message before, when it was not ready


class Joined(_Message, frozen=True):
    """A rank hears the leader from now on."""

    rank: int
    place: int  # of the next message that it hears
    reports: tuple[Report, ...] = ()  # what became of requests that the leader may have missed


class Parted(_Message, frozen=True):
    """A rank hears no longer; ``reports`` are its last."""

    rank: int
    reports: tuple[Report, ...] = ()


News = Joined | Parted | Report | Reply

_encode = msgspec.json.Encoder().encode
_said = msgspec.json.Decoder(Said)
_news = msgspec.json.Decoder(News)


def to_text(said: Said | News) -> str:
    """Return a message as one line, without its end."""
    return _encode(said).decode()


def said_in(raw: bytes) -> Said | None:
    """Read what a leader says; None where another program wrote it."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _said.decode(raw) if len(raw) <= MOST_BYTES else None
    return None


def news_in(raw: bytes) -> list[News]:
    """Read what ranks say, one a line; a line of another program counts as nothing."""
    found: list[News] = []
    for line in raw.splitlines():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if len(line) <= MOST_BYTES:
                found.append(_news.decode(line))
    return found


def in_utf_8(path: str) -> str:
    """Return a path as JSON can hold it: a folder's name may have other bytes in it."""
    return path.encode("utf-8", "backslashreplace").decode()
