"""Values of JSON files that other users may have written: numbers and texts that code can use."""

from __future__ import annotations

from typing import Any

MOST = 1e15
"""Of a number in a record: dates, counts of bytes and process ids are far below it."""
_ANY_JSON = "config"
"""A field that repeats what the operator wrote, ``metadata`` of any kind included."""


def check_values(record: Any) -> None:
    """Check what a record of pydantic's, or a dataclass, has in its fields, at any depth.

    Raises:
        ValueError: A number is not finite or has more than 15 digits, or a text has a NUL.
    """
    waiting = [record]
    for value in waiting:  # grows as it goes
        if isinstance(value, str):
            if "\0" in value:
                raise ValueError("a text in it has a NUL character")
        elif isinstance(value, (int, float)):
            if not -MOST < value < MOST:  # NaN as well
                raise ValueError("a number in it is not finite, or has more than 15 digits")
        else:
            waiting += _inner(value)


def _inner(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        return list(value)
    fields = vars(value)
    if _ANY_JSON in fields:
        return [inner for name, inner in fields.items() if name != _ANY_JSON]
    return list(fields.values())
