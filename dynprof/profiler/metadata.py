"""What a script writes about its capture, within the vendor's limits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynprof.process.warnings_to_script import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CHARS = 4096
"""Of a key or a value."""
MAX_BYTES = 50 * 1024
"""Of all together."""
LEFT_OUT = "it is left out"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is none")


def _is_text(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()


class Metadata:
    """Keys and values; what breaks a limit is left out, with a warning.

    Args:
        wrong: Takes what is wrong, and what became of it.

    Attributes:
        values: What was taken.
    """

    def __init__(self, wrong: Callable[[str, str], None]) -> None:
        self.values: dict[str, Any] = {}
        self._wrong = wrong

    def add(self, key: str, value: str) -> None:
        """Take a string."""
        if isinstance(value, str):
            self._take(key, value, value)
        else:
            self._wrong(f"the value of metadata {key!r} is {value!r:.80}, no string", LEFT_OUT)

    def add_json(self, key: str, value: Any) -> None:
        """Take a value of JSON, written as JSON or as Python has it."""
        try:
            text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
            parsed = json.loads(text, parse_constant=_refuse)
        except (TypeError, ValueError, RecursionError) as error:
            text = f"the value of metadata {key!r} is {value!r:.80}, no JSON ({error})"
            self._wrong(text, LEFT_OUT)
        else:
            self._take(key, text, parsed)

    def _take(self, key: str, text: str, value: Any) -> None:
        others = {k: v for k, v in self.values.items() if k != key}
        if not isinstance(key, str):
            self._wrong(f"the key of metadata {key!r} is no string", LEFT_OUT)
        elif not _is_text(key) or not _is_text(text):
            self._wrong(f"metadata {key!r} holds half a surrogate pair", LEFT_OUT)
        elif max(len(key), len(text)) > MAX_CHARS:
            self._wrong(f"metadata {key[:40]!r} has more than {MAX_CHARS} characters", LEFT_OUT)
        elif len(json.dumps({**others, key: value})) > MAX_BYTES:
            text = f"with metadata {key!r} all together have more than {MAX_BYTES} bytes"
            self._wrong(text, LEFT_OUT)
        else:
            if key in self.values:
                warn_script(f"metadata {key!r} was given before; the newer value is taken")
            self.values[key] = value
