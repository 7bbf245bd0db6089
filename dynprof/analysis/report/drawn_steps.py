"""Which steps the page draws, where there are too many for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def steps_to_draw(lengths: Sequence[float], most: int) -> list[tuple[int, int]]:
    """Return the slowest steps and the one before and after each: place, and steps skipped before.

    In the order of the steps, which are all there is where there is room for them.

    Args:
        lengths: How long each step took.
        most: How many steps there is room for.
    """
    chosen: set[int] = set()
    for slow in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        around = chosen | ({slow - 1, slow, slow + 1} & set(range(len(lengths))))
        if len(around) > most:
            break
        chosen = around
    places = sorted(chosen)
    return [(here, here - before - 1) for before, here in zip([-1, *places], places, strict=False)]
