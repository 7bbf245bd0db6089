"""What a script writes about its capture, within the vendor's limits."""

from __future__ import annotations

import json
from typing import Any

from dynprof.process.warnings_to_script import warn_script

MAX_CHARS = 4096
"""Of a key or a value."""
MAX_BYTES = 50 * 1024
"""Of all together."""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is none")


def _is_text(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()


class Metadata:
    """Keys and values; what breaks a limit is left out, with a warning.

    Attributes:
        values: What was taken.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def add(self, key: str, value: str) -> None:
        """Take a string."""
        if isinstance(value, str):
            self._take(key, value, value)
        else:
            warn_script(f"metadata {key!r} is left out: its value is no string")

    def add_json(self, key: str, value: Any) -> None:
        """Take a value of JSON, written as JSON or as Python has it."""
        try:
            text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
            parsed = json.loads(text, parse_constant=_refuse)
        except (TypeError, ValueError, RecursionError) as error:
            warn_script(f"metadata {key!r} is left out: its value is no JSON ({error})")
        else:
            self._take(key, text, parsed)

    def _take(self, key: str, text: str, value: Any) -> None:
        others = {k: v for k, v in self.values.items() if k != key}
        if not isinstance(key, str):
            warn_script(f"metadata {key!r} is left out: its key is no string")
        elif not _is_text(key) or not _is_text(text):
            warn_script(f"metadata {key!r} is left out: it holds half a surrogate pair")
        elif max(len(key), len(text)) > MAX_CHARS:
            warn_script(
                f"metadata {key[:40]!r} is left out: it has more than {MAX_CHARS} characters"
            )
        elif len(json.dumps({**others, key: value})) > MAX_BYTES:
            warn_script(f"metadata {key!r} is left out: all together may have {MAX_BYTES} bytes")
        else:
            if key in self.values:
                warn_script(f"metadata {key!r} was given before; the newer value is taken")
            self.values[key] = value
