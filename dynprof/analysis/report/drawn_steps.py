"""The steps that the page draws, if there are too many to draw all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def steps_to_draw(lengths: Sequence[float], most: int) -> list[tuple[int, int]]:
    """Return the slowest steps and their neighbours: index, and number of steps skipped before it.

    They are in the order of the steps; all steps are returned if they fit.

    Args:
        lengths: The time of each step.
        most: The most steps to return.
    """
    chosen: set[int] = set()
    for slow in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        around = chosen | ({slow - 1, slow, slow + 1} & set(range(len(lengths))))
        if len(around) > most:
            break
        chosen = around
    places = sorted(chosen)
    return [(here, here - before - 1) for before, here in zip([-1, *places], places, strict=False)]
