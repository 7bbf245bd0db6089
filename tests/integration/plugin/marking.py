"""A recorder of the plugin's marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dynprof.mstx as mstx

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.marks.subscription import Marker


def marked(action: Callable[[], object]) -> list[str]:
    """Return the phases during an action, in the order of their ends."""
    found: list[Marker] = []
    with mstx.subscribe(found.append):
        action()
    assert {marker.domain for marker in found} <= {"phases"}
    return [marker.message for marker in found]
