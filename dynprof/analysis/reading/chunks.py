"""A trace file in chunks of whole events, so that memory never holds all of it.

Reads the files of Kineto and VizTracer, pretty or compact, plain or gzipped. It reads a truncated
file up to where it ends.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dynprof.analysis.reading.inflate import Inflated, Readable, Torn, opened
from dynprof.captures.broken_names import escape
from dynprof.errors import CaptureError, reason

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

CHUNK = 4 << 20
"""Bytes of a chunk, about. Larger ones are slower: they do not fit into a processor's cache."""
_TAIL = 64 << 10
"""Bytes at the end of the text in which the last boundary between events is searched first."""
_LONGEST_HEAD = 64 << 20
_LONGEST_EVENT = 256 << 20
"""Bytes of an event, at most: a small compressed file may unpack to one without an end."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb'\s*\[\s*(?:\]|$|\{.*?"ph"\s*:)', re.DOTALL)
"""Matches a bare list of events."""
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|args|id|dur|s|bp)"\s*:)')
"""Matches between two events, never in a string: there a quote has a backslash before it."""

_SEAMS = re.compile(rb'(?:\][^\[\]{}]*\}\s*\{[^\[\]{}]*"traceEvents"\s*:\s*\[\s*)+')
"""Matches from the events of an object to those of the next one, as of Triton's Proton.

It writes an object for each stream. Valid JSON has no two objects without a comma between them."""
_NAMES = re.compile(rb'"(\w+)"\s*:')
_OF_PROTON = frozenset({"displayTimeUnit", "traceEvents"})
"""Members of each of its objects."""


class TraceFile:
    """A trace on disk.

    Args:
        path: Its path.

    Attributes:
        members: The members of the JSON object before its events, and after them once
            :meth:`chunks` has ended.
        torn: Where and how the file ends too early; empty if it does not.
        complete: Whether the list of its events was read to its end; known once :meth:`chunks`
            has ended.
        is_list: Whether it is a bare list of events.
        size: The number of its uncompressed bytes that were read.
        place: The uncompressed byte at which the newest chunk begins.
        mended: The number of names in the last events that were not JSON, and their first byte.

    Raises:
        CaptureError: The file is no trace.
    """

    def __init__(self, path: Path) -> None:
        self.members: dict[str, Any] = {}
        self.torn = ""
        self.complete = self.is_list = False
        self.size = self.place = 0
        self.mended = (0, 0)
        self._path = path
        self._of_size = ""
        with opened(path) as file:
            self.members = self._head(file)[0]

    def chunks(self, *, whole: bool = False) -> Generator[bytes, None, None]:
        """Yield the events in chunks of JSON objects with commas between them.

        Args:
            whole: Yield one chunk: slower, but correct if lists in an event look like events.
        """
        with opened(self._path) as file:
            _, rest = self._head(file)
            while True:
                chunk = self._read(file, CHUNK)
                rest = self._as_one_list(rest + chunk).lstrip(b", \r\n\t")
                if len(rest) > _LONGEST_EVENT and not whole:
                    raise CaptureError(f"{self._path} is no trace: an event in it has no end")
                if len(chunk) < CHUNK // 2:
                    break
                cut = 0 if whole else _last_boundary(rest, len(rest) - _TAIL)
                if cut:
                    self.place = self.size - len(rest)
                    yield _in_utf8(rest[:cut])
                    rest = rest[cut:].lstrip(b", \r\n\t")
            yield from self._ending(rest, whole=whole)

    def _as_one_list(self, text: bytes) -> bytes:
        """Return the text with a comma between the events of one object and those of the next.

        Raises:
            CaptureError: The next object is another trace: it has members of its own.
        """

        def comma(seam: re.Match[bytes]) -> bytes:
            if {name.decode() for name in _NAMES.findall(seam[0])} - _OF_PROTON:
                raise CaptureError(
                    f"{self._path} holds several traces, one after the other; "
                    "write each to a file of its own"
                )
            return b",".ljust(len(seam[0]))

        if self.is_list or self.members.keys() - _OF_PROTON or b'"traceEvents"' not in text:
            return text  # the search in a large file takes time
        return _SEAMS.sub(comma, text)

    def _read(self, file: Readable, size: int) -> bytes:
        """Read ``size`` bytes; fewer only at the end of the file or where it is torn."""
        parts: list[bytes] = []
        missing = size
        while missing and (part := self._part(file, missing)):
            parts.append(part)
            missing -= len(part)
            self.size += len(part)
        return b"".join(parts)

    def _part(self, file: Readable, size: int) -> bytes:
        try:
            return file.read(size)
        except Torn as error:
            self.torn = f"{error}, {self.size:,} uncompressed"
        except OSError as error:
            self.torn = f"the file cannot be read after {self.size:,} bytes: {reason(error)}"
        return b""

    def _head(self, file: Readable) -> tuple[dict[str, Any], bytes]:
        """Return the members before the events, and the text read after them."""
        self.size, self._of_size = 0, ", uncompressed" if isinstance(file, Inflated) else ""
        self.mended = (0, 0)
        text = self._read(file, 1 << 16)
        if text.lstrip()[:1] == b"[":
            if not _LIST.match(text):
                raise CaptureError(f"{self._path} is no trace: its list holds no events")
            self.is_list = True
            return {}, text.lstrip()[1:]
        place, error = 0, "it has no traceEvents"
        while True:
            match = _EVENTS.search(text, place)
            if match is None:
                chunk = self._read(file, 1 << 20)
                if not chunk or len(text) > _LONGEST_HEAD:
                    raise CaptureError(f"{self._path} is no trace: {error}")
                text += chunk
                continue
            try:
                before = text[: match.start()].rstrip().rstrip(b",")
                return json.loads(_in_utf8(before) + b"}", strict=False), text[
                    match.end() :
                ].lstrip()
            except ValueError as found:  # it is inside another member; search further
                place, error = match.end(), str(found)

    def _ending(self, rest: bytes, *, whole: bool) -> Iterator[bytes]:
        """Yield the last events; record what follows them."""
        cut = 0 if whole else _last_boundary(rest, max(0, len(rest) - _TAIL))
        self.place = self.size - len(rest)
        if cut:
            yield _in_utf8(rest[:cut])
        rest = rest[cut:].lstrip(b", \r\n\t")
        self.place = self.size - len(rest)
        text = rest.decode("utf-8", "replace")
        end, broken = last_end(text)
        if broken is not None:
            escaped, names = escape(text[end:].encode())
            repaired = text[:end] + escaped.decode()
            further, _ = last_end(repaired, end)
            if further > end:  # otherwise the file ends within a name
                self.mended = (names, self.place + len(text[:broken].encode()))
                text, end = repaired, further
        yield text[:end].encode()
        self._after(text[_skip(text, end, ", \r\n\t") :])

    def _after(self, text: str) -> None:
        """Read the members after the events; anything else means that the file is torn."""
        if not text.startswith("]"):
            where = f"after {self.size:,} bytes{self._of_size}"
            self.torn = self.torn or f"the file ends inside its events, {where}"
            return
        self.complete = True
        rest = text[1:].strip()
        if rest in ("", "}"):
            return
        try:
            self.members |= json.loads("{" + rest.lstrip(","), strict=False)
        except ValueError:
            self.torn = self.torn or "the file ends after its events"


def last_end(text: str, place: int = 0) -> tuple[int, int | None]:
    """Return the end of the last valid event, and where the next one is not JSON, else None."""
    decoder, end = json.JSONDecoder(strict=False), place
    while text[(place := _skip(text, place, ", \r\n\t")) : place + 1] not in ("]", ""):
        try:
            _, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            return end, error.pos
        end = place
    return end, None


def _last_boundary(text: bytes, since: int) -> int:
    """Return the end of the last event that another one follows; 0 if there is none."""
    found = 0
    for match in _BETWEEN.finditer(text, max(0, since)):
        found = match.start() + 1
    if not found and since > 0:
        return _last_boundary(text, 0)
    return found


def _in_utf8(text: bytes) -> bytes:
    """Return the text with invalid UTF-8 replaced; names may be any bytes."""
    if text.isascii():  # nearly always, and this check is ten times as fast
        return text
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode(errors="replace").encode()
    return text


def _skip(text: str, place: int, characters: str) -> int:
    while place < len(text) and text[place] in characters:
        place += 1
    return place
