"""What the ranks of a job say to each other about a window; JSON, checked as it is read."""

from __future__ import annotations

import contextlib
from typing import Union

import msgspec

MOST_BYTES = 1 << 20
"""Of one message: a config is small, and what is longer was not written by dynprof."""


class _Message(msgspec.Struct, frozen=True, tag_field="is"):
    """What the leader says to all others, each in its turn.

    Attributes:
        number: That of the request, counted by the leader.
    """

    number: int


class Proposal(_Message, frozen=True, tag="proposal"):
    """A config that the leader has accepted: who can serve it, and when?

    Attributes:
        config: Its text.
        edited_at_s: When it was saved, in seconds since the epoch.
        patience_s: How long a rank may take until it is free for a window.
    """

    config: str
    edited_at_s: float
    patience_s: float


class Question(_Message, frozen=True, tag="question"):
    """Where is each rank now?"""


class Opening(_Message, frozen=True, tag="opening"):
    """All open at this step.

    Attributes:
        step: The step.
        left_out: Why not, for each rank that was asked for and takes no part.
    """

    step: int
    left_out: dict[int, str]


class Withdrawal(_Message, frozen=True, tag="withdrawal"):
    """There will be no window.

    Attributes:
        reasons: Why.
    """

    reasons: tuple[str, ...]


class Cancellation(_Message, frozen=True, tag="cancellation"):
    """Disarm what waits, close what is open."""


class Rejoin(_Message, frozen=True, tag="rejoin"):
    """For whoever was away so long that the messages since are gone."""


class Farewell(_Message, frozen=True, tag="farewell"):
    """The leader leads no more."""


Message = Union[  # noqa: UP007 - msgspec reads it on Python 3.10 as well
    Proposal, Question, Opening, Withdrawal, Cancellation, Rejoin, Farewell
]


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rank says to a message.

    Attributes:
        rank: Its number.
        host: Its machine.
        problem: Why it cannot do what was asked of it; empty where it can.
        takes_part: Whether it is to record.
        step: The number of the step that is running.
        step_s: How long its steps take, in seconds; None where it does not know yet.
        still_s: For how long this one has been running.
        steps_from: Who ends its steps.
    """

    rank: int
    host: str
    problem: str = ""
    takes_part: bool = False
    step: int = 0
    step_s: float | None = None
    still_s: float = 0.0
    steps_from: str = ""


def to_bytes(said: Message | Reply) -> bytes:
    """Return a message or a reply as one line of JSON, without its end."""
    return msgspec.json.encode(said)


def message_of(raw: bytes) -> Message:
    """Read a message.

    Raises:
        ValueError: It is none.
    """
    found: Message = _MESSAGES.decode(_short(raw))
    return found


def replies_of(raw: bytes) -> list[Reply]:
    """Read replies, one a line; a line that is none counts as nothing.

    Raises:
        ValueError: There is more than any job would say.
    """
    found: list[Reply] = []
    for line in raw.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            found.append(_REPLIES.decode(_short(line)))
    return found


def _short(raw: bytes) -> bytes:
    if len(raw) > MOST_BYTES:
        raise ValueError(f"a message of {len(raw)} bytes is none of dynprof's")
    return raw


_MESSAGES = msgspec.json.Decoder(Message)
_REPLIES = msgspec.json.Decoder(Reply)
