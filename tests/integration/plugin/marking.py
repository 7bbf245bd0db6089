"""What the plugin marks while something runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dynprof.mstx as mstx

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.marks.subscription import Marker


def marked(action: Callable[[], object]) -> list[str]:
    """Return the phases that an action has, in the order of their ends."""
    found: list[Marker] = []
    with mstx.subscribe(found.append):
        action()
    assert {marker.domain for marker in found} <= {"phases"}
    return [marker.message for marker in found]
