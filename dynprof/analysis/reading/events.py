"""One event of a trace, as far as anything here looks at it."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import msgspec

NONE = -1
"""Stands where an event has nothing to say."""


class Args(msgspec.Struct, gc=False):
    """The arguments that Kineto gives its events."""

    external_id: int = msgspec.field(default=NONE, name="External id")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    group: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Process Group Name")
    members: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Process Group Ranks")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    sequence: int = msgspec.field(default=NONE, name="Sequence number")
    bytes: int = msgspec.field(default=0, name="Bytes")
    total: int = msgspec.field(default=0, name="Total Allocated")
    reserved: int = msgspec.field(default=0, name="Total Reserved")
    address: int = msgspec.field(default=NONE, name="Addr")
    device_type: int = msgspec.field(default=NONE, name="Device Type")
    device_id: int = msgspec.field(default=NONE, name="Device Id")
    device: int = NONE
    stream: int = NONE
    correlation: int = NONE


class Event(msgspec.Struct, gc=False):
    """An event whose times a float holds exactly enough."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None

    def start_ns(self) -> int:
        """Return its begin in whole nanoseconds."""
        return round(self.ts * 1000)

    def length_ns(self) -> int:
        """Return its duration in whole nanoseconds."""
        return round(self.dur * 1000)


class ExactEvent(Event, gc=False):
    """An event of a trace without a base time: its microseconds need more digits than a float."""

    ts: Decimal = Decimal(0)  # type: ignore[assignment]

    def start_ns(self) -> int:
        """Return its begin in whole nanoseconds."""
        return int(self.ts * 1000)


_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def decode(chunk: bytes, kind: type[Event]) -> list[Event]:
    """Return the events of a chunk.

    Raises:
        msgspec.MsgspecError: It is no JSON.
    """
    text = b"".join((b"[", chunk, b"]"))
    try:
        return msgspec.json.decode(text, type=list[kind], strict=False)  # type: ignore[valid-type]
    except msgspec.ValidationError:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        found = _loosely(text, error)
    return [_lenient(event, kind) for event in found]


def _loosely(text: bytes, error: msgspec.DecodeError) -> list[Any]:
    """Return what Python's own reader takes, as json.dumps writes it: NaN, half surrogate pairs."""
    try:
        found = json.loads(_HALF_PAIR.sub(rb"\\ufffd", text), strict=False)
    except ValueError:
        raise error from None
    return list(found)


def _lenient(event: Any, kind: type[Event]) -> Event:
    """Return an event, without those of its arguments that are of another type than Kineto's."""
    if not isinstance(event, dict):
        return kind()
    known = {name: event[name] for name in ("ph", "name", "cat", "ts", "dur") if name in event}
    known |= {name: _number_or_text(event.get(name, 0)) for name in ("pid", "tid")}
    try:
        found = msgspec.convert(known, kind, strict=False)
    except msgspec.ValidationError:
        return kind()
    if isinstance(event.get("args"), dict):
        found.args = _arguments(event["args"])
    return found


def _number_or_text(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def _arguments(given: dict[str, Any]) -> Args:
    found = Args()
    for field in msgspec.structs.fields(Args):
        value = given.get(field.encode_name)
        if field.type is msgspec.Raw:
            value = msgspec.Raw(b"" if value is None else msgspec.json.encode(value))
        elif not isinstance(value, int):
            continue
        setattr(found, field.name, value)
    return found
