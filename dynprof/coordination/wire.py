"""How what ranks say to each other is written and read: a line of JSON, checked as it is read."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from pydantic import Field, TypeAdapter

from dynprof.config.file_reading import MAX_BYTES
from dynprof.coordination.messages import (
    Joined,
    Mark,
    Message,
    Opening,
    Parted,
    Profiler,
    Reply,
)
from dynprof.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable

AT_A_TIME_S, BREATH_S = 0.0005, 0.0002
"""So long what many have said is read; then the job's threads have the interpreter for a moment."""
MOST_BYTES = 7 * MAX_BYTES
"""Of one message: a byte of a config takes up to six in it; what torch's store takes is 8 MiB."""


Line = TypeVar("Line")


def to_text(said: Message | Reply | Joined | Parted) -> str:
    """Return what is said as one line of JSON, without its end."""
    short = isinstance(said, Reply)  # of which there are many, and half of it is not known mostly
    return _adapter(type(said)).dump_json(said, exclude_defaults=short).decode()


def in_utf_8(path: str) -> str:
    """Return a path as it can be said: the name of a folder may have other bytes in it."""
    return path.encode("utf-8", "backslashreplace").decode()


def message_of(raw: bytes) -> Message:
    """Read a message.

    Raises:
        ValueError: It is none.
    """
    found: Message = _adapter(_ANY).validate_json(_short(raw))
    return found


def coming_and_going(raw: bytes) -> list[Joined | Parted]:
    """Read who joined and who parted, in the order in which they did."""
    found: list[Joined | Parted] = lines_of(_COMING_AND_GOING, raw)
    return found


def lines_of(kind: type[Line], raw: bytes) -> list[Line]:
    """Read what ranks say, one a line; a line that is nothing of that kind counts as nothing."""
    found: list[Line] = []
    since_s = time.perf_counter()
    for line in raw.splitlines():
        if time.perf_counter() > since_s + AT_A_TIME_S:
            time.sleep(BREATH_S)
            since_s = time.perf_counter()
        with contextlib.suppress(ValueError):
            found.append(_adapter(kind).validate_json(_short(line)))
    return found


def _short(raw: bytes) -> bytes:
    if len(raw) > MOST_BYTES:
        raise ValueError(f"longer than any message of dynprof's: {counted(len(raw), 'byte')}")
    return raw


_ANY = Annotated[Message, Field(discriminator="kind")]
_COMING_AND_GOING: Any = Joined | Parted
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def use_once() -> None:
    """Build what reads and writes messages, and have it do so."""
    for kind in (_ANY, _COMING_AND_GOING, *get_args(Message), Reply, Joined, Parted):
        _adapter(kind)
    message_of(to_text(Opening(0, 0, {0: ""}, superseded=((0, 0),))).encode())
    reply = Reply(0, usable=(Profiler("", ("",)),), mark=Mark(0, 0))
    lines_of(Reply, to_text(reply).encode())
    coming_and_going(to_text(Parted(0, reply)).encode())
    coming_and_going(b"{}")  # is none
