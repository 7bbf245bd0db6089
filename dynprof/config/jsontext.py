"""A JSON reader for hand-written files: it keeps places and reports all syntax errors at once.

The standard ``json`` module reads the scalars. This reader walks objects and lists itself: it needs
the line and column of each value, and must see duplicate keys. It continues after the most common
mistakes (a comment, an extra comma, ``True``), so that one save shows all of them.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from dynprof.errors import ConfigError, Problem

MAX_DEPTH = 32
"""Allowed levels of nesting; the config itself has three."""

MAX_VALUES = 10_000
"""Allowed members and elements; more would keep the watcher's thread busy for seconds."""
MAX_ERRORS = 50
"""Errors after which reading stops; a longer list does not help the reader."""

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|#[^\n]*", re.DOTALL)
_WORD = re.compile(r"-?[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(
    r"([+-]?)(?:0[xX]((?:_?[0-9a-fA-F])+)"
    r"|(?=\.?[0-9])([0-9_]*)(?:\.([0-9_]*))?([eE][+-]?[0-9]+)?)"
)
"""A number as people write it, including forms that JSON does not allow."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERALS = {"true": True, "false": False, "null": None}
_MISSPELLED = {"True": "true", "False": "false", "None": "null", "undefined": "null"}
_EXPONENT, _DIGIT = re.compile(r"[eE].*"), re.compile(r"[1-9]")
_CURLY = 'JSON wants straight double quotes, ", not curly ones.'
_QUOTES = {
    "'": "JSON wants double quotes around text, not single ones.",
    **dict.fromkeys("“”„‟″", _CURLY),
}
_NOT_NUMBERS = {"NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"}


@dataclass(frozen=True)
class Document:
    """The result of reading a JSON text.

    Attributes:
        value: Its value, as ``json.loads`` would return it.
        problems: Errors that were skipped; if there are any, the text is not valid JSON.
        places: Line and column of each value by JSON pointer; a member has the place of its key.
        placeholders: JSON pointers of values that stand for a number that cannot be represented.
            Each has a problem.
    """

    value: Any
    problems: tuple[Problem, ...]
    places: dict[str, tuple[int, int]]
    placeholders: frozenset[str] = frozenset()


def read_json(text: str) -> Document:
    """Read ``text`` and report every error with line and column.

    Raises:
        ConfigError: The text ends too early, or an error hides its structure.
    """
    reader = _Reader(text)
    value = reader.document()
    return Document(value, tuple(reader.problems), reader.places, frozenset(reader.placeholders))


def join(pointer: str, key: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of the member or element ``key`` of ``pointer``."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


@dataclass
class _Reader:
    text: str
    at: int = 0
    problems: list[Problem] = field(default_factory=list)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    placeholders: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._line_starts = [0, *(m.end() for m in re.finditer("\n", self.text))]
        self._decoder = json.JSONDecoder()

    def document(self) -> Any:
        self._skip()
        if self.at == len(self.text):
            raise self._stop('the file is empty; write a JSON object, at least {"active": 1}.')
        value = self._value("", 1)
        self._skip()
        if self.at < len(self.text):
            self._note("there is text after the end of the JSON object; remove it.")
        return value

    def _value(self, pointer: str, depth: int) -> Any:
        self.places.setdefault(pointer, self._place(self.at))
        if depth > MAX_DEPTH:
            raise self._stop(f"nested more than {MAX_DEPTH} levels deep; no setting needs that.")
        if len(self.places) > MAX_VALUES:
            raise self._stop(f"there are more than {MAX_VALUES:,} values; no config needs that.")
        here = self._peek()
        if here == "{":
            return self._object(pointer, depth)
        if here == "[":
            return self._list(pointer, depth)
        return self._scalar(pointer)

    def _object(self, pointer: str, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while self._more("}", first=not members):
            start = self.at
            key = self._key()
            child = join(pointer, key)
            if key in members:
                line = self.places[child][0]
                self._note(f"the key appears twice, first on line {line}; keep one.", child, start)
            self.places.setdefault(child, self._place(start))
            self._skip()
            if self._peek() != ":":
                raise self._stop(f'a colon is missing after the key "{key}".', child)
            self.at += 1
            self._skip()
            members[key] = self._value(child, depth + 1)
        return members

    def _list(self, pointer: str, depth: int) -> list[Any]:
        elements: list[Any] = []
        while self._more("]", first=not elements):
            elements.append(self._value(join(pointer, len(elements)), depth + 1))
        return elements

    def _more(self, closing: str, *, first: bool) -> bool:
        """Move to the next member or element, or past ``closing``; return whether there is one."""
        if first:
            self.at += 1
        self._skip()
        if not first and self._peek() == ",":
            comma = self.at
            self.at += 1
            self._skip()
            while self._peek() == ",":
                self._note("two commas in a row; remove one.")
                self.at += 1
                self._skip()
            if self._peek() == closing:
                self._note(f"remove the comma before the closing {closing}.", "", comma)
        elif not first and self._peek() not in (closing, ""):
            instead = "; write it instead of this" if self._peek() == ";" else " before this"
            raise self._stop(f"a comma is missing{instead}.")
        if self._peek() == "":
            raise self._stop(f"the text ends too early: a closing {closing} is missing.")
        if self._peek() != closing:
            return True
        self.at += 1
        return False

    def _key(self) -> str:
        here = self._peek()
        if _QUOTES.get(here) == _CURLY:
            raise self._stop(_CURLY)
        if here != '"':
            more = "; there are no commas within a number" if here.isdecimal() else ""
            raise self._stop(f'a key in double quotes is expected here, such as "active"{more}.')
        return str(self._scalar(""))

    def _scalar(self, pointer: str) -> Any:
        word = _WORD.match(self.text, self.at)
        if word:
            return self._word(word, pointer)
        if wrong := _QUOTES.get(self._peek()):
            raise self._stop(wrong, pointer)
        start = self.at
        try:
            value, self.at = self._read(pointer)
        except json.JSONDecodeError as error:
            self.at = min(error.pos, len(self.text))
            raise self._stop(_why_not_json(error.msg, self._peek()), pointer) from None
        except ValueError:  # Python converts up to 4,300 digits
            raise self._stop("this number has too many digits.", pointer) from None
        if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
            self._note("half of a surrogate pair (\\ud800 to \\udfff) is not a character.", pointer)
        if isinstance(value, float) and (why := _why_not_kept(value, self.text[start : self.at])):
            return self._placeholder(why, pointer, start)
        return value

    def _read(self, pointer: str) -> tuple[Any, int]:
        """Return the scalar at this position and its end; note how JSON spells a number."""
        number = _NUMBER.match(self.text, self.at)
        if number is None or (spelt := _in_json(number)) == number[0]:
            return self._decoder.raw_decode(self.text, self.at)
        self._note(f"JSON spells this {spelt[:40]}, not {number[0][:40]}.", pointer)
        return json.loads(spelt), number.end()

    def _placeholder(self, why: str, pointer: str, start: int) -> int:
        """Note why a number cannot be represented; return the placeholder for it."""
        self._note(why, pointer, start)
        self.placeholders.add(pointer)
        return 0

    def _word(self, word: re.Match[str], pointer: str) -> Any:
        found = word.group()
        if found in _LITERALS:
            value: Any = _LITERALS[found]
        elif found in _MISSPELLED:
            value = _LITERALS[_MISSPELLED[found]]
            self._note(f"JSON spells this {_MISSPELLED[found]}, not {found}.", pointer)
        elif found in _NOT_NUMBERS:
            why = f"{found} is not a number that JSON knows; write digits, such as 4 or 0.5."
            value = self._placeholder(why, pointer, self.at)
        else:
            text = f'"{found[:40]}" has no quotes; write it in double quotes.'
            raise self._stop(text, pointer)
        self.at = word.end()
        return value

    def _skip(self) -> None:
        """Skip white space, and skip comments with a note."""
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            comment = _COMMENT.match(self.text, self.at)
            if not comment:
                return
            self._note("JSON has no comments; remove it.")
            self.at = comment.end()

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _place(self, at: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, at)
        return line, at - self._line_starts[line - 1] + 1

    def _note(self, sentence: str, pointer: str = "", at: int | None = None) -> None:
        place = self._place(self.at if at is None else at)
        self.problems.append(Problem(sentence, pointer, *place))
        if len(self.problems) == MAX_ERRORS:
            raise ConfigError(self.problems)

    def _stop(self, sentence: str, pointer: str = "") -> ConfigError:
        self._note(sentence, pointer)
        return ConfigError(self.problems)


def _in_json(number: re.Match[str]) -> str:
    """Return how JSON spells a number."""
    sign, hexadecimal, whole, part, power = (text.replace("_", "") for text in number.groups(""))
    digits = str(int(hexadecimal, 16)) if hexadecimal else whole.lstrip("0")
    return f"{sign.strip('+')}{digits or 0}{part and '.' + part}{power}"


def _why_not_json(message: str, here: str) -> str:
    """Return why the standard reader stopped; its own message may end in "at"."""
    if message.startswith("Unterminated string"):
        return "the string that begins here does not end: a closing double quote is missing."
    if here == "\n":
        return "a string does not end on this line: a closing double quote is missing."
    return f"this is not JSON: {message.removesuffix(' at')}."


def _why_not_kept(value: float, written: str) -> str:
    """Return why a number cannot be represented as a float; empty if it can."""
    if math.isinf(value):
        return f"{written[:40]} is above the largest number allowed (1.8e308); write a smaller one."
    if value == 0 and _DIGIT.search(_EXPONENT.sub("", written)):
        return f"{written[:40]} is too small to differ from 0; write 0 or a larger one."
    return ""
