"""Lists that an event's arguments hold as JSON: shapes, types, strides, grids."""

from __future__ import annotations

import json
from typing import Any


def listed(text: bytes) -> list[Any]:
    """Return a list; empty if the text is not a list, or is nested too deep."""
    try:
        found = json.loads(text or b"[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []
