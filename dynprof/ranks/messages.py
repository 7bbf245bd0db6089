"""Messages between the ranks of a job about a window, as lines of JSON.

The leader (rank 0) sends all ranks a :class:`LeaderMessage`: a proposal, then an opening or a
withdrawal.
Each rank answers a proposal or a question with a :class:`Reply`. It reports the progress of its
window by itself, with a :class:`Report`.
"""

from __future__ import annotations

import contextlib
from typing import Literal

import msgspec

from dynprof.config.file_reading import MAX_BYTES

MAX_MESSAGE_BYTES = 7 * MAX_BYTES
"""Limit of a message: JSON needs up to six bytes for one of a config; torch's store takes 8 MiB."""
NO_DYNPROF, SILENT = "it does not run dynprof", "it did not answer in time"
LEFT_GROUP = "it has left the process group, or dynprof has ended on it"
"""Why a rank that has sent no reason takes no part."""


class _Message(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """One line; its ``type`` names the class."""


class Profiler(msgspec.Struct, frozen=True):
    """What a rank records with: a backend and its activities."""

    backend: str
    activities: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.backend} ({', '.join(self.activities)})"


class LeaderStarted(_Message, frozen=True):
    """A leader begins; each rank replies with :class:`Joined`."""

    who: str  # its rank, machine and config


class Proposal(_Message, frozen=True):
    """A config that the leader has accepted; each rank replies whether it can serve it now."""

    number: int  # of the request, given by the leader; the same in all messages
    config: str  # its text
    edited_at_s: float  # when it was saved, in seconds since the epoch
    ranks: str = ""  # the chosen ranks; empty where the config names them
    profiler: Profiler | None = None  # for all ranks; None: each rank uses its own
    begun: tuple[tuple[int, int], ...] = ()
    """The leader's newest steps, each with the number of collectives begun before it. Empty if its
    steps were counted from the first on."""
    trigger: str = ""  # what made the leader request it; empty if a save did

    @property
    def key(self) -> tuple[int, str, float]:
        """What stays if the leader proposes it again, narrowed."""
        return self.number, self.config, self.edited_at_s


class Question(_Message, frozen=True):
    """A question to each rank: its step, and the state of a request there."""

    number: int
    begun: tuple[tuple[int, int], ...] = ()  # as in the proposal


class Opening(_Message, frozen=True):
    """All ranks open at this step."""

    number: int
    step: int
    left_out: dict[int, str] = {}  # the requested ranks that take no part, and why
    superseded: tuple[int, ...] = ()  # requests that no rank waits with any more


GivenUp = Literal["refused", "superseded", "cancelled"]


class Withdrawal(_Message, frozen=True):
    """No window opens."""

    number: int
    reasons: tuple[str, ...]
    config: str  # its text, for ranks to which it was not proposed
    outcome: GivenUp = "refused"  # of the request


class Cancellation(_Message, frozen=True):
    """Each rank cancels its waiting request and closes its open window."""

    number: int
    config: str  # the text of the config with the cancel
    edited_at_s: float


class LeaderStopped(_Message, frozen=True):
    """The leader stops leading."""


Message = LeaderStarted | Proposal | Question | Opening | Withdrawal | Cancellation | LeaderStopped


class LeaderMessage(msgspec.Struct, frozen=True):
    """A message of a leader, with its sender."""

    by: str  # the token of the leader's run; each run has another one
    expect: int  # the number of replies that wakes the leader
    message: Message


class Report(_Message, frozen=True):
    """The state of a rank, and of a request on it."""

    rank: int
    number: int = 0  # of the request; 0 for none
    host: str = ""
    newest: int = 0  # the highest request number on the rank
    state: str = ""  # of the rank, as in its status
    outcome: str = ""  # of the request so far; empty if the rank does not know it
    capture: str = ""  # the manifest, on the rank's machine; empty for none
    cut: str = ""  # why steps are missing in the capture; empty if none are
    why: str = ""  # the rank's reason for the outcome
    still_s: float = 0.0  # how long its step has been running
    step_s: float | None = None  # its mean step time in seconds; None while unknown


class Reply(_Message, frozen=True):
    """The answer of a rank to a proposal or a question."""

    rank: int
    place: int  # of the message that it answers
    report: Report  # the request so far
    problem: str = ""  # why the rank cannot record; empty if it can
    takes_part: bool = False  # whether the request includes the rank
    busy: str = ""  # why it is not free yet; empty if it is
    step: int = 0  # the number of the running step
    fast_s: float | None = None  # its fastest recent step time; None while unknown
    has_own_numbers: bool = False  # whether its step numbers cannot be compared with the leader's
    # Whether each step has a collective, so that the ranks step together; None while unknown.
    steps_together: bool | None = False
    profiler: Profiler | None = None  # the one it would use; None if it takes no part
    usable: tuple[Profiler, ...] = ()  # all profilers that it could use
    again: bool = False  # whether it replied before that it was not ready


class Joined(_Message, frozen=True):
    """A rank receives the leader's messages from now on."""

    rank: int
    reports: tuple[Report, ...] = ()  # on requests that the leader may have missed


class RankLeft(_Message, frozen=True):
    """A rank stops receiving messages; ``reports`` are its last."""

    rank: int
    reports: tuple[Report, ...] = ()


RankMessage = Joined | RankLeft | Report | Reply

_encode = msgspec.json.Encoder().encode
_said = msgspec.json.Decoder(LeaderMessage)
_news = msgspec.json.Decoder(RankMessage)


def to_text(said: LeaderMessage | RankMessage) -> str:
    """Return a message as one line, without its end."""
    return _encode(said).decode()


def parse_leader_message(raw: bytes) -> LeaderMessage | None:
    """Parse a message of a leader; None if another program wrote the text."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _said.decode(raw) if len(raw) <= MAX_MESSAGE_BYTES else None
    return None


def parse_rank_messages(raw: bytes) -> list[RankMessage]:
    """Parse the news of ranks, one a line; skip lines that another program wrote."""
    found: list[RankMessage] = []
    for line in raw.splitlines():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if len(line) <= MAX_MESSAGE_BYTES:
                found.append(_news.decode(line))
    return found


def in_utf_8(path: str) -> str:
    """Return a path that JSON can hold: folder names may have bytes that are not UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()
