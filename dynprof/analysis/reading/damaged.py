"""The whole events in a part of a trace that is not valid JSON."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any, NamedTuple

from dynprof.captures.broken_names import escape

UNDECIDED = 4 << 20
"""Bytes from the start of an event before it counts as damaged: the rest may not be read yet."""
_TRIED = 4
"""Ends of a damaged event that are tried: its name may look like events."""
_BLANK = ", \r\n\t"
_BLANKS = re.compile(f"[{_BLANK}]*")
_BEGIN = re.compile(
    r'(?:\}\s*\S?\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|args|id|dur|s|bp)"\s*:)'
    r'|[^\[:\s]\s*(?=\{\s*"ph"\s*:))'
)
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
