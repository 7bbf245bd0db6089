"""A trace file in chunks of whole events, so that memory never holds all of it.

Reads the files of Kineto and VizTracer, pretty or compact, plain or gzipped. It reads a truncated
file up to where it ends, and leaves out events that are not valid JSON.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dynprof.analysis.reading.damaged import NOTHING, members_after, whole_events
from dynprof.analysis.reading.inflate import Inflated, Readable, Truncated, opened
from dynprof.captures.broken_names import is_json
from dynprof.errors import CaptureError, reason

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

CHUNK = 2 << 20
"""Bytes of a chunk, about. Larger ones are slower: they do not fit into a processor's cache."""
_TAIL = 64 << 10
"""Bytes at the end of the text in which the last boundary between events is searched first."""
_LONGEST_HEAD = 64 << 20
"""Bytes before the list of events, at most; a file without a list is not read to its end."""
_LONGEST_EVENT = 256 << 20
"""Bytes of an event, at most: a small compressed file may unpack to one without an end."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb'\s*\[\s*(?:\]|$|\{.*?"ph"\s*:)', re.DOTALL)
"""Matches a bare list of events."""
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|args|id|dur|s|bp)"\s*:)')
"""Matches between two events, never in a string: there a quote has a backslash before it."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SHOWN = 8
"""Bytes of a file that is not a trace, to show what it may be instead."""

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
        truncated: Where and how the file ends too early or is damaged; empty if it is not.
        complete: Whether the list of its events was read to its end; known once :meth:`chunks`
            has ended.
        is_list: Whether it is a bare list of events.
        size: The number of its uncompressed bytes that were read.
        repaired: Its names that were not escaped; known once :meth:`chunks` has ended.
        lost: Where its events are not valid JSON; known once :meth:`chunks` has ended.

    Raises:
        CaptureError: The file is not a trace.
    """

    def __init__(self, path: Path) -> None:
        self.members: dict[str, Any] = {}
        self.truncated = ""
        self.complete = self.is_list = False
        self.size = 0
        self.repaired = self.lost = NOTHING
        self._path = path
        self._of_size = ""
        with opened(path) as file:
            self.members = self._head(file)[0]

    def chunks(self, *, sound: bool = False) -> Generator[bytes, None, None]:
        """Yield the events in chunks of JSON objects with commas between them.

        Args:
            sound: Yield only valid JSON: slower. Without it, a chunk may have damaged events, or
                end inside one with lists that look like events.
        """
        with opened(self._path) as file:
            _, rest = self._head(file)
            while True:
                chunk = self._read(file, CHUNK)
                rest = self._as_one_list(rest + chunk).lstrip(b", \r\n\t")
                if len(rest) > _LONGEST_EVENT:
                    raise CaptureError(f"{self._path} is not a trace: an event in it has no end")
                if len(chunk) < CHUNK // 2:
                    break
                found, rest = self._cut(rest, sound=sound)
                if found:
                    yield found
            yield from self._ending(rest, sound=sound)

    def _cut(self, text: bytes, *, sound: bool) -> tuple[bytes, bytes]:
        """Return the first events of a text, and its rest."""
        cut = _last_boundary(text, max(0, len(text) - _TAIL))
        found = _in_utf8(text[:cut])
        if sound and not is_json(b"[%b]" % found):
            return self._whole_events(text, last=False)
        return found, text[cut:].lstrip(b", \r\n\t")

    def _whole_events(self, text: bytes, *, last: bool) -> tuple[bytes, bytes]:
        """Return the events of a text that are valid JSON, and what follows them."""
        place = self.size - len(text)
        found = whole_events(text, self.repaired, self.lost, place=place, last=last)
        self.repaired, self.lost = found.repaired, found.lost
        return _in_utf8(found.text), text[found.end :]

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
        """Read ``size`` bytes; fewer only at the end of the file or where it is truncated."""
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
        except Truncated as error:
            self.truncated = f"{error}, {self.size:,} uncompressed"
        except OSError as error:
            self.truncated = f"the file cannot be read after {self.size:,} bytes: {reason(error)}"
        return b""

    def _head(self, file: Readable) -> tuple[dict[str, Any], bytes]:
        """Return the members before the events, and the text read after them."""
        self.size, self._of_size = 0, ", uncompressed" if isinstance(file, Inflated) else ""
        self.truncated, self.repaired, self.lost = "", NOTHING, NOTHING
        text = self._read(file, 1 << 16).removeprefix(_BYTE_ORDER_MARK)
        if text.lstrip()[:1] == b"[":
            if not _LIST.match(text):
                raise CaptureError(f"{self._path} is not a trace: its list holds no events")
            self.is_list = True
            return {}, text.lstrip()[1:]
        place = 0
        while True:
            match = _EVENTS.search(text, place)
            if match is None:
                chunk = self._read(file, 1 << 20)
                if not chunk or len(text) > _LONGEST_HEAD:
                    raise CaptureError(self._why_no_trace(text))
                text += chunk
                continue
            try:
                before = text[: match.start()].rstrip().rstrip(b",")
                return json.loads(_in_utf8(before) + b"}", strict=False), text[match.end() :]
            except ValueError:  # it is inside another member; search further
                place = match.end()

    def _why_no_trace(self, text: bytes) -> str:
        """Return why a file without events is not a trace; its text is all of it, or very long."""
        if self.truncated:
            return f"{self._path} is damaged: {self.truncated}, before the first event"
        if not text:
            return f"{self._path} is not a trace: it is empty{self._of_size}"
        if not text.strip(b"\0"):
            return f"{self._path} is not a trace: it holds only zero bytes and no traceEvents"
        encoding = json.detect_encoding(text)
        if not encoding.startswith("utf-8"):
            name = encoding.upper()
            return f"{self._path} is {name}, not UTF-8; convert it: iconv -f {name} -t UTF-8"
        start = text.lstrip()
        if start[:1] != b"{":
            shown = start[:_SHOWN].decode("ascii", "backslashreplace")
            return (
                f"{self._path} is not a trace: it begins with {shown!r}, not as JSON or gzip does"
            )
        try:
            json.loads(start.decode("latin-1"), strict=False)  # one letter is one byte
        except json.JSONDecodeError as error:
            if error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated"):
                end = f"{self.size:,} bytes{self._of_size}"
                return f"{self._path} is cut off: it ends after {end}, before the first event"
            byte = f"{len(text) - len(start) + error.pos:,}{self._of_size}"
            return f"{self._path} is damaged: it is not valid JSON at byte {byte}"
        return f"{self._path} is not a trace: it has no traceEvents"

    def _ending(self, rest: bytes, *, sound: bool) -> Iterator[bytes]:
        """Yield the last events; record what follows them."""
        cut = _last_boundary(rest, max(0, len(rest) - _TAIL))
        found = _in_utf8(rest[:cut])
        if cut and not (sound and not is_json(b"[%b]" % found)):
            yield found
            rest = rest[cut:].lstrip(b", \r\n\t")
        found, rest = self._whole_events(rest, last=True)
        yield found
        self._after(rest.decode(errors="replace"))

    def _after(self, text: str) -> None:
        """Read the members after the events; anything else means that the file is truncated."""
        self.complete = text.startswith("]")
        if not self.complete:
            where = f"after {self.size:,} bytes{self._of_size}"
            self.truncated = self.truncated or f"the file ends inside its events, {where}"
        elif (members := members_after(text)) is not None:
            self.members |= members
        else:
            self.truncated = self.truncated or "the file ends after its events"


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
