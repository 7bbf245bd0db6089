"""Which steps of a window take far longer than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_RATIO = 1.5
"""An outlier takes at least this many times the median; less is not worth a line."""
MIN_DEVIATIONS = 3.5 / 0.6745
"""An outlier is above the median by more than this many median absolute deviations.

That is a modified z-score of 3.5: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
"""


def median_of(lengths: Sequence[int]) -> float:
    """Return the median; of an even number, the mean of the two in the middle."""
    return float(np.median(np.array(lengths, float)))


def outliers(lengths: Sequence[int]) -> list[int]:
    """Return the places of the outliers, the longest first.

    Of two steps none is one: neither is known to be the usual one.

    Args:
        lengths: How long each step took.
    """
    if len(lengths) < 3:
        return []
    times, median = np.array(lengths, float), median_of(lengths)
    scatter = float(np.median(np.abs(times - median)))
    far = (median > 0) & (times >= MIN_RATIO * median) & (times - median > MIN_DEVIATIONS * scatter)
    return sorted(np.flatnonzero(far).tolist(), key=lambda place: -lengths[place])
