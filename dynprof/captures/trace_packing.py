"""Turn a raw trace into the final one: add members and events, and compress it."""

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
"""Bytes that are read, checked and compressed at a time."""
ISAL_LEVEL, GZIP_LEVEL = 2, 1
"""Compression levels. For a trace of 50 MB: isal 1,900 MB/s to 6.8 %, gzip 400 MB/s to 7.7 %."""

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[\s*(?=\S)')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_PHASE = b'"ph":'
"""Once in each event; inside a text its quotes are escaped."""
_LONGEST = 64 * CHUNK
"""Most bytes held in memory before the first event, or without an event's end."""
_BETWEEN = (b"},\n  {", b"},{", b"}, {")
"""Text between two events, as Kineto, VizTracer and Python write it. No name contains it: Kineto's
names have no line breaks, and the others escape the quotes that a faked event would need."""


@dataclass(frozen=True)
class Packed:
    """What was found in a trace while it was packed.

    Attributes:
        events: How many events the trace has.
        repaired: How many names the profiler had not escaped; they now read as the script set them.
        nameless: How many events torch calls ``unknown``.
        broken_at: Offset of the first byte of the uncompressed packed trace that is still not JSON.
    """

    events: int = 0
    repaired: int = 0
    nameless: int = 0
    broken_at: int | None = None

    def remarks(self) -> Iterator[str]:
        """Yield messages about changed names."""
        if self.repaired:
            names = counted(self.repaired, "name")
            yield f"{names} with quotes repaired; torch does not escape them"
        if self.nameless:
            names = counted(self.nameless, "name")
            why = "torch writes no name that has a tab or a character outside ASCII"
            yield f'{names} in the trace read "unknown"; {why}'

    def faults(self) -> Iterator[str]:
        """Yield why the trace cannot be read whole."""
        if self.broken_at is not None:
            yield f"its uncompressed trace is invalid JSON from byte {self.broken_at:,} on"


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
    """Copy a trace, add members at its start and events, and compress it.

    The profiler does not add them, because Kineto does not escape its metadata. Members are written
    without spaces, because HolisticTraceAnalysis searches the text for ``"rank": `` and must find
    the profiler's. The copy is checked to be JSON, and unescaped names are repaired.

    Args:
        raw: The trace, a JSON object.
        packed: The file to write to.
        name: The name to note in the compressed file.
        first_members: The members.
        on_chunk: Called before every piece of about 1 MiB; may raise to stop.
        events: The events; their times in whole nanoseconds, ``ts`` since the epoch.
        compress: Whether to compress with gzip.

    Returns:
        What was found in it.

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
    """Checks and repairs the pieces of a trace.

    Attributes:
        written: How many bytes were written before the piece.
    """

    def __init__(self) -> None:
        self.events = self.repaired = self.nameless = self.written = 0
        self.broken_at: int | None = None

    def checked(self, text: bytes, begin: int, end: int) -> bytes | memoryview:
        """Return a piece, repaired if needed.

        Args:
            text: The piece, with the text around it that makes it JSON.
            begin: Length of the text before the piece.
            end: Length of the text after it.
        """
        place = slice(begin, len(text) - end)
        piece: bytes | memoryview = memoryview(text)[place]  # a copy takes as long as a check
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
    """Yield the rest of the events in pieces cut between two, for :meth:`_Check.checked`."""
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
    """Return the end of the last event that is followed by another; 0 if there is none."""
    return next((place + 1 for one in _BETWEEN if (place := text.rfind(one)) > 0), 0)


def _up_to_events(raw: BinaryIO, head: bytes) -> tuple[bytes, bytes]:
    """Return the text before the first event, and the text that was read after it."""
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
    """Return isal's writer, or Python's own on machines without isal."""
    try:
        from isal import igzip
    except ImportError:
        return gzip.GzipFile(name, "wb", GZIP_LEVEL, packed, mtime=0)
    make: Callable[..., gzip.GzipFile] = igzip.IGzipFile
    return make(name, "wb", ISAL_LEVEL, packed, mtime=0)
