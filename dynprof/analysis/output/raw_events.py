"""Events whose values stay the bytes that they are in a file, for what is to be written again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dynprof.analysis.reading.events import loosely
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from pathlib import Path

Fields = dict[str, msgspec.Raw]
"""An event, its values as they stand in the file."""
_decoder = msgspec.json.Decoder(list[Fields])
to_json = msgspec.json.encode


def decoded(chunk: bytes) -> list[Fields] | None:
    """Return the events of a piece; None where it is none that is whole."""
    text = b"[%b]" % chunk
    try:
        try:
            return _decoder.decode(text)
        except msgspec.ValidationError:
            found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        try:
            found = loosely(text, error)
        except msgspec.DecodeError:
            return None
    events = (event for event in found if isinstance(event, dict))
    return [{name: msgspec.Raw(to_json(value)) for name, value in e.items()} for e in events]


def text_of(event: Fields, name: str) -> bytes:
    """Return a value of an event as it stands in the file."""
    found = event.get(name)
    return b'""' if found is None else bytes(found)


def category(event: Fields) -> str:
    """Return which kind of event one is."""
    return text_of(event, "cat").strip(b'"').decode(errors="replace").lower()


def as_object(raw: msgspec.Raw | None) -> dict[str, Any]:
    """Return the members of an object; none where it is none."""
    found = msgspec.json.decode(raw) if raw else {}
    return found if isinstance(found, dict) else {}


def exact_us(ns: int, path: Path) -> msgspec.Raw:
    """Return a time in microseconds, exactly.

    Raises:
        CaptureError: It is of before the common beginning.
    """
    if ns < 0:
        raise CaptureError(f"{path} is of another day than the other ranks: leave it out")
    return msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))
