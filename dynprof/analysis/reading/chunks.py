"""A trace file in chunks of whole events, so that memory never holds all of it.

Reads the files of Kineto and VizTracer, pretty or compact, plain or gzipped. It reads a truncated
file up to where it ends, and leaves out events that are not valid JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from dynprof.captures.broken_names import escape, is_json
from dynprof.errors import CaptureError, reason
from dynprof.runtime.safe_open import open_regular

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

CHUNK = 2 << 20
"""Bytes of a chunk, about. Larger ones are slower: they do not fit into a CPU's cache."""
_TAIL = 64 << 10
"""Bytes at the end of the text in which the last boundary between events is searched first."""
_LONGEST_HEAD = 64 << 20
"""Bytes before the list of events, at most; a file without a list is not read to its end."""
_LONGEST_EVENT = 256 << 20
"""Bytes of an event, at most: a small compressed file may unpack to one without an end."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb'\s*\[\s*(?:\]|$|\{.*?"ph"\s*:)', re.DOTALL)
"""Matches a bare list of events."""
_FIRST_MEMBER = r'\{\s*"(?:ph|name|cat|pid|tid|ts|args|id|dur|s|bp)"\s*:'
"""Matches how an event starts."""
_BETWEEN = re.compile(rf"\}}\s*,\s*(?={_FIRST_MEMBER})".encode())
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
UNDECIDED = 4 << 20
"""Bytes from the start of an event before it counts as damaged: the rest may not be read yet."""
_TRIED = 4
"""Ends of a damaged event that are tried: its name may look like events."""
_BLANK = ", \r\n\t"
_BLANKS = re.compile(f"[{_BLANK}]*")
_BEGIN = re.compile(rf'(?:\}}\s*\S?\s*(?={_FIRST_MEMBER})|[^\[:\s]\s*(?=\{{\s*"ph"\s*:))')
"""Matches up to the start of an event, also where what separates it from the last is damaged."""
_PHASE = re.compile(r'\{\s*"ph"\s*:')
"""Matches where most events start, and nothing in the members after them."""
_LAST_END = re.compile(r'\}\s*(?=\]\s*(?:\}?\s*\Z|,\s*"))')
"""Matches the end of an event that may be the last."""
_MEMBER = re.compile(r'\]\s*,\s*"')
"""Matches the end of a list and the start of the member after it."""
_NAMED = "XBi"
"""Phases of events that always have a name."""
_DECODER = json.JSONDecoder(strict=False)
_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 16
"""Bytes that are read and unpacked at a time."""
_GZIP = 31
"""zlib's ``wbits`` for a gzip header and trailer."""
MAX_RATIO = 200
"""Unpacked to packed bytes, at most. Profilers' traces have 10 to 25; spaces can have 1,000."""
NEVER_REFUSED = 64 << 20
"""Unpacked bytes that are never refused: a small trace of one repeated event compresses better."""


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


class Damage(NamedTuple):
    """Places at which a trace is not valid JSON.

    Attributes:
        places: How many there are.
        first: The uncompressed byte of the file at the first; 0 if there is none.
    """

    places: int = 0
    first: int = 0

    def plus(self, places: int, byte: int) -> Damage:
        """Return the sum with later places, the first of them at ``byte``."""
        return Damage(self.places + places, self.first if self.places else byte)


NOTHING = Damage()


class Events(NamedTuple):
    """The whole events of a text.

    Attributes:
        text: The events, with commas between them.
        end: The offset of what follows them: the end of their list, or an unfinished event.
        repaired: Names that were not escaped, and are now.
        lost: Places with damaged events, which are left out.
    """

    text: bytes
    end: int
    repaired: Damage
    lost: Damage


def whole_events(text: bytes, repaired: Damage, lost: Damage, *, place: int, last: bool) -> Events:
    """Return the events of a text that are valid JSON, or are once their names are escaped.

    Args:
        text: Events with commas between them, from the start of one.
        repaired: The names that were repaired before.
        lost: The damaged places before.
        place: The byte of the file at which the text begins.
        last: Whether the text reaches to the end of the file.
    """
    letters, found, at = text.decode("latin-1"), list[str](), 0  # one letter is one byte
    while True:
        at = _BLANKS.match(letters, at).end()  # type: ignore[union-attr]  # it matches nothing too
        if _may_end(letters, at, last=last):
            break
        end, error = _event(letters, at)
        if error is None:
            found.append(letters[at:end])
            at = end
            continue
        if not last and len(letters) - at < UNDECIDED:
            break
        ends = _ends(letters, at, error, last=last)
        if not ends:
            break
        event, end, names = _repaired(letters, at, ends)
        if names:
            found.append(event)
            repaired = repaired.plus(names, place + error)
        else:
            lost = lost.plus(1, place + error)
        at = end
    return Events(",".join(found).encode("latin-1"), at, repaired, lost)


def members_after(text: str) -> dict[str, Any] | None:
    """Return the members after the list of events; None if the text is not its end.

    Args:
        text: The rest of the file, from the bracket that ends the list.
    """
    if not text.startswith("]"):
        return None
    rest = text[1:].strip()
    if rest in ("", "}"):
        return {}
    try:
        return dict(json.loads("{" + rest.lstrip(","), strict=False))
    except ValueError:
        return None


def _event(letters: str, at: int) -> tuple[int, int | None]:
    """Return the end of an event, and the offset at which it is not JSON, else None."""
    if letters[at] != "{":
        return at, at
    try:
        return _DECODER.raw_decode(letters, at)[1], None
    except json.JSONDecodeError as error:
        return at, error.pos
    except ValueError:  # a number with thousands of digits
        return at, at


def _may_end(letters: str, at: int, *, last: bool) -> bool:
    """Return whether the list of events ends here, as far as the text shows."""
    if letters[at : at + 1] not in ("]", ""):
        return False
    if not _PHASE.search(letters, at):
        return True
    return members_after(letters[at:]) is not None if last else bool(_MEMBER.match(letters, at))


def _ends(letters: str, at: int, error: int, *, last: bool) -> list[int]:
    """Return where a damaged event may end, the likeliest first; none if it is unfinished.

    Args:
        letters: The text.
        at: The start of the event.
        error: Where it is not JSON.
        last: Whether the text reaches to the end of the file.
    """
    if last:
        later = _BEGIN.search(letters, error)
        for match in _LAST_END.finditer(letters, at, later.end() if later else len(letters)):
            if members_after(letters[match.end() :]) is not None:
                return [match.end()]
        if not later:  # what looks like a start before the error is inside this event
            return []
    return [match.end() for match in islice(_BEGIN.finditer(letters, at + 1), _TRIED)]


def _repaired(letters: str, at: int, ends: list[int]) -> tuple[str, int, int]:
    """Return an event with its names escaped, its end, and how many were not escaped; else 0."""
    for end in ends:
        escaped, names = escape(letters[at:end].rstrip(_BLANK).encode("latin-1"))
        event = escaped.decode("latin-1")
        if names and _event(event, 0) == (len(event), None) and _is_whole(event):
            return event, end, names
    return "", ends[0], 0


def _is_whole(event: str) -> bool:
    """Return whether an event has a phase, a category and a name, none of which contains others.

    If the quote at the end of a phase is lost, the rest of the line looks like a name with quotes.
    """
    found = _DECODER.decode(event)
    phase, category = str(found.get("ph", "")), str(found.get("cat", ""))
    return len(phase) == 1 and '"' not in category and ("name" in found or phase not in _NAMED)


class Truncated(Exception):  # noqa: N818 - a property of a file
    """The compressed file ends too early, or is damaged; all bytes before were returned.

    Args:
        packed: The number of compressed bytes before that.
        why: What is wrong there.
    """

    def __init__(self, packed: int, why: str) -> None:
        super().__init__(f"the compressed file {why} after {packed:,} bytes")


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Readable]:
    """Open a trace for reading its uncompressed bytes.

    Raises:
        CaptureError: The file cannot be read.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        raise CaptureError(f"{path} cannot be read: {reason(error)}") from error
    with file:
        packed = file.read(2) == _MAGIC
        file.seek(0)
        yield Inflated(file, path) if packed else file


class Inflated:
    """The content of a gzip file, which may have several members.

    Python's own reader does not return what it decompressed of a truncated or damaged file.

    Args:
        file: The compressed file.
        path: Its name, for messages.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._most = max(NEVER_REFUSED, MAX_RATIO * os.fstat(file.fileno()).st_size)
        self._given = 0
        self._ready = b""
        self._make, self._errors = _inflater()
        self._inflate = self._make()
        self._taken = self._member = 0
        self._damage: Truncated | None = None

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end.

        Raises:
            Truncated: The file ends too early, or is damaged.
            CaptureError: It unpacks to far more than a trace does.
        """
        while not self._ready and self._more():
            pass
        part, self._ready = self._ready[:size], self._ready[size:]
        return part

    def _more(self) -> bool:
        """Decompress some more; False at the end."""
        if self._damage:
            raise self._damage
        ended = self._inflate.eof
        packed = self._inflate.unused_data if ended else b""
        if len(packed) < len(_MAGIC):
            packed += self._file.read(_PIECE)
        if ended:
            if not packed.startswith(_MAGIC):
                self._check_padding(packed)
                return False
            self._inflate, self._member = self._make(), self._taken
        elif not packed:
            raise Truncated(self._taken, "is truncated")
        try:
            self._ready = self._inflate.decompress(packed)
            self._taken += len(packed) - len(self._inflate.unused_data)
        except self._errors:
            self._ready = self._before_damage(packed)
        self._given += len(self._ready)
        if self._given > self._most:
            size = os.fstat(self._file.fileno()).st_size
            raise CaptureError(
                f"{self._path} is not read: {size / 1e6:,.1f} MB unpack to more than "
                f"{self._most / 1e6:,.0f} MB; no trace unpacks to {MAX_RATIO} times its size"
            )
        return True

    def _check_padding(self, packed: bytes) -> None:
        """Raise :class:`Truncated` if other data than padding follows the last member."""
        if packed.strip(b"\0"):
            raise Truncated(self._taken, "has other data")

    def _before_damage(self, packed: bytes) -> bytes:
        """Return what damaged bytes hold before the damage; the next call raises."""
        inflate, found = self._make(), list[bytes]()
        self._file.seek(self._member)
        for begin in range(self._member, self._taken, _PIECE):
            inflate.decompress(self._file.read(min(_PIECE, self._taken - begin)))
        try:
            for byte in packed:
                found.append(inflate.decompress(bytes([byte])))
                self._taken += 1
        except self._errors as error:
            suspect = "; values may be wrong" if self._given or any(found) else ""
            self._damage = Truncated(self._taken, f"is damaged ({error}{suspect})")
        return b"".join(found)


def _inflater() -> tuple[Any, Any]:
    """Return a constructor of isal's decompressor, or Python's own if isal is not available."""
    try:
        from isal import isal_zlib
    except ImportError:
        return (lambda: zlib.decompressobj(wbits=_GZIP)), zlib.error
    return (lambda: isal_zlib.decompressobj(wbits=_GZIP)), isal_zlib.error
