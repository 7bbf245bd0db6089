"""A raw trace becomes the one that is kept: with members and events of ours, and compressed."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from dynprof.captures.broken_names import fault, has_odd_name, is_json, repair, unknown_names
from dynprof.errors import BackendError
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dynprof.backends.collectors.base import Event, Events

CHUNK = 1 << 20
ISAL_LEVEL, GZIP_LEVEL = 2, 1
"""Measured on a trace of 50 MB: isal writes 1,900 MB/s to 6.8 %, gzip 400 MB/s to 7.7 %."""

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[\s*(?=\S)')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_PHASE = b'"ph":'
"""Once in each event; in a text its quotes are escaped."""
_LONGEST = 64 * CHUNK
"""Bytes before the first event, or without the end of one, that are held in memory."""
_BETWEEN = (b"},\n  {", b"},{", b"}, {")
"""Between two events: as Kineto, VizTracer and Python write them. In no name: Kineto's have no line
breaks, and the others escape quotes, which a name needs to look like several events."""


@dataclass(frozen=True)
class Packed:
    """What was noticed of a trace while it was packed.

    Attributes:
        events: How many events the trace has.
        repaired: How many names the profiler had not escaped; they are what the script gave now.
        nameless: How many events torch calls ``unknown``.
        broken_at: The first byte of the packed trace, uncompressed, that is no JSON all the same.
    """

    events: int = 0
    repaired: int = 0
    nameless: int = 0
    broken_at: int | None = None

    def remarks(self) -> Iterator[str]:
        """Say what became of names."""
        if self.repaired:
            names = counted(self.repaired, "name")
            yield f"{names} with quotes repaired; torch does not escape them"
        if self.nameless:
            names = counted(self.nameless, "name")
            why = "torch writes no name that has a tab or a character outside ASCII"
            yield f'{names} in the trace read "unknown"; {why}'

    def faults(self) -> Iterator[str]:
        """Say why it cannot be read whole."""
        if self.broken_at is not None:
            yield f"its trace is no JSON from byte {self.broken_at:,} on, uncompressed"


def pack(
    raw: BinaryIO,
    packed: BinaryIO,
    *,
    name: str,
    first_members: Mapping[str, Any],
    on_chunk: Callable[[], None],
    events: Events = (),
    compress: bool = True,
) -> Packed:
    """Copy a trace, adding members to it as its first ones, and events, and compress it.

    They are added here and not through the profiler, because Kineto does not escape what it is
    given. Members are written without spaces, because HolisticTraceAnalysis searches the text for
    ``"rank": `` and must find the one of the profiler. All that is copied is checked to be JSON,
    and names that are not escaped are repaired.

    Args:
        raw: The trace, a JSON object.
        packed: Where to.
        name: The name to note in the compressed file.
        first_members: The members.
        on_chunk: Called before every piece of about 1 MiB; may raise to end it.
        events: The events; their times in whole nanoseconds, ``ts`` since the epoch.
        compress: Whether with gzip, or not at all.

    Returns:
        What became of its names.

    Raises:
        BackendError: ``raw`` is not a JSON object, or has no list of events.
    """
    start, brace, rest = raw.read(64).partition(b"{")
    if start.strip() or not brace:
        raise BackendError("the profiler did not write a JSON object")
    members = json.dumps(first_members, separators=(",", ":")).encode()[1:-1] + b","
    head, rest = _up_to_events(raw, rest)
    check = _Check()
    with _sink(packed, name, compress=compress) as sink:
        check.written += sink.write(brace + members)
        added = _as_text(list(events), _BASE.search(head) or _BASE.search(members))
        comma = b"," if added and not rest.startswith(b"]") else b""
        check.written += sink.write(check.checked(b"{%b]}" % head, 1, 2))
        check.written += sink.write(added + comma)
        for piece in _pieces(raw, rest):
            on_chunk()
            check.written += sink.write(check.checked(*piece))
    return Packed(check.events, check.repaired, check.nameless, check.broken_at)


class _Check:
    """Checks the pieces of a trace, and repairs them.

    Attributes:
        written: How many bytes came before the piece.
    """

    def __init__(self) -> None:
        self.events = self.repaired = self.nameless = self.written = 0
        self.broken_at: int | None = None

    def checked(self, text: bytes, begin: int, end: int) -> bytes | memoryview:
        """Return a piece as it is to be written.

        Args:
            text: The piece, with what makes it JSON around it.
            begin: How much of that is before it.
            end: How much is behind it.
        """
        place = slice(begin, len(text) - end)
        piece: bytes | memoryview = memoryview(text)[place]  # to copy takes as long as to check
        if not is_json(text) or has_odd_name(text):
            if mended := repair(text[place], text[:begin], text[place.stop :]):
                piece = text = mended.text
                self.repaired += mended.names
            elif (broken := fault(text)) is not None and self.broken_at is None:
                self.broken_at = self.written + broken - begin
        self.nameless += unknown_names(text)
        self.events += text.count(_PHASE)
        return piece


def _pieces(raw: BinaryIO, rest: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield what follows the begin of the events, cut between two, as :class:`_Check` takes it."""
    before = b"["
    while chunk := raw.read(CHUNK):
        if cut := _last_cut(chunk) or (len(chunk) if len(rest) > _LONGEST else 0):
            yield b"".join((before, rest, memoryview(chunk)[:cut], b"]")), len(before), 1
            before, rest = b"[0", chunk[cut:]  # which begins with a comma
        else:
            rest += chunk
    before = b'{"":' + before
    yield before + rest, len(before), 0


def _last_cut(text: bytes) -> int:
    """Return the end of the last event that another one follows; 0 where there is none."""
    return next((place + 1 for one in _BETWEEN if (place := text.rfind(one)) > 0), 0)


def _up_to_events(raw: BinaryIO, head: bytes) -> tuple[bytes, bytes]:
    """Return what comes before the first event, and what was read behind."""
    while not (match := _EVENTS.search(head)):
        chunk = raw.read(CHUNK)
        if not chunk or len(head) > _LONGEST:
            raise BackendError("the profiler wrote no list of events")
        head += chunk
    return head[: match.end()], head[match.end() :]


def _as_text(events: list[Event], base: re.Match[bytes] | None) -> bytes:
    """Return events as JSON, with commas between them."""
    base_ns = int(base[1]) if base else 0
    return ",".join(json.dumps(_placed(event, base_ns)) for event in events).encode()


def _placed(event: Event, base_ns: int) -> Event:
    """Return an event with its times as the format has them: microseconds since the base time."""
    times = {"ts": event["ts"], "dur": event.get("dur")}
    shift = {"ts": base_ns if event["ph"] != "M" else 0, "dur": 0}
    placed = {
        key: (value - shift[key]) / 1000 for key, value in times.items() if isinstance(value, int)
    }
    return {**event, **placed}


def _sink(packed: BinaryIO, name: str, *, compress: bool) -> contextlib.AbstractContextManager[Any]:
    return _compressor(packed, name) if compress else contextlib.nullcontext(packed)


def _compressor(packed: BinaryIO, name: str) -> gzip.GzipFile:
    """Return isal's writer, or Python's own on machines that isal is not built for."""
    try:
        from isal import igzip
    except ImportError:
        return gzip.GzipFile(name, "wb", GZIP_LEVEL, packed, mtime=0)
    make: Callable[..., gzip.GzipFile] = igzip.IGzipFile
    return make(name, "wb", ISAL_LEVEL, packed, mtime=0)
