"""The sentences about a trend agree with each other and with its figures."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.difference import OPERATOR, PART, Change, Series
from dynprof.analysis.runs.trend import Trend
from dynprof.runtime.plural import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1_000_000
HOURS = 12


def quantity(name: str, by: str, values: Sequence[float], first: int | None) -> Series:
    """Return a series in ms that changes at a baseline, or nowhere."""
    found = [value * MS for value in values]
    changes = () if first is None else (Change(first, found[0], found[-1]),)
    return Series(name, by, tuple(found), changes)


def trend(*series: Series) -> Trend:
    """Return the trend of a rank with a baseline every hour."""
    baselines: Any = [
        SimpleNamespace(
            manifest=SimpleNamespace(steps=SimpleNamespace(first=hour)),
            opened_at=datetime(2026, 11, 22, hour).astimezone(),
        )
        for hour in range(HOURS)
    ]
    labels = tuple(f"{hour:02}:00" for hour in range(HOURS))
    return Trend(Path("job"), "rank 0", 0, tuple(baselines), labels, series, ())


@pytest.mark.parametrize("apart", [-1, 0, 1])
def test_changes_at_neighbours_are_one(apart: int) -> None:
    """What changes one baseline before or after the steps is named with them, and once."""
    (said,) = trend(
        quantity("step", "step", [84.3] * 6 + [115.0] * 6, 6),
        quantity("rest", PART, [42.5] * (6 + apart) + [57.7] * (6 - apart), 6 + apart),
    ).sentences()
    assert sentence(said) == (
        "A step took 84.3 ms, and takes 115 ms from the baseline of 06:00 (step 6) on; rest went "
        "from 42.5 ms to 57.7 ms."
    )


@pytest.mark.parametrize(
    ("pace", "end"),
    [
        ([100.0] * 12, ", and the pace of steps did not change."),
        ([272.0] * 6 + [42.0] * 6,
         "; the median step went from 272 ms to 42 ms, within its variation."),
    ],
)  # fmt: skip
def test_a_change_of_an_operator_says_what_the_steps_did(pace: list[float], end: str) -> None:
    """A pace that moved is not called unchanged. The operator's name is not capitalised."""
    (said,) = trend(
        quantity("step", "step", pace, None),
        quantity("aten::addmm", OPERATOR, [10.0] * 6 + [20.0] * 6, 6),
    ).sentences()
    assert sentence(said).startswith("The operator aten::addmm went from 10 ms to 20 ms from ")
    assert sentence(said).endswith(end)
