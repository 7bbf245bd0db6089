"""Check values of JSON files that other users may have written: numbers and texts."""

from __future__ import annotations

from typing import Any

MOST = 1e15
"""Limit for numbers in a record: dates, byte counts and process ids are far below it."""
_ANY_JSON = "config"
"""A field that repeats the operator's config, which may have any ``metadata``."""


def check_values(record: Any) -> None:
    """Check the fields of a pydantic record or dataclass, at any depth.

    Raises:
        ValueError: A number is not finite or has more than 15 digits, or a text has a NUL.
    """
    waiting = [record]
    for value in waiting:  # the list grows during the loop
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
