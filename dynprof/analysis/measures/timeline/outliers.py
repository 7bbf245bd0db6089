"""Steps of a window that take far longer than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_RATIO = 1.5
"""Smallest ratio of an outlier to the median; a smaller one is not worth a line."""
MIN_DEVIATIONS = 3.5 / 0.6745
"""Median absolute deviations by which an outlier must exceed the median.

This is a modified z-score of 3.5: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
"""


def median_of(lengths: Sequence[int]) -> float:
    """Return the median; for an even count, the mean of the two middle values."""
    return float(np.median(np.array(lengths, float)))


def outliers(lengths: Sequence[int]) -> list[int]:
    """Return the indices of the outliers, the longest first.

    With fewer than three steps there are none: no step is known to be typical.

    Args:
        lengths: How long each step took.
    """
    if len(lengths) < 3:
        return []
    times, median = np.array(lengths, float), median_of(lengths)
    scatter = float(np.median(np.abs(times - median)))
    far = (median > 0) & (times >= MIN_RATIO * median) & (times - median > MIN_DEVIATIONS * scatter)
    return sorted(np.flatnonzero(far).tolist(), key=lambda place: -lengths[place])
