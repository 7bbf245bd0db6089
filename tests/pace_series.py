"""Readings of the step counter of imagined jobs, once a second, with a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BEGAN_S = 1_800_000_000.0
"""When each job begins, in seconds since the epoch."""
DAY_S = 86_400.0


@dataclass(frozen=True)
class Stalls:
    """Time between two steps, such as an evaluation after every 1,000 steps.

    Attributes:
        every: Steps between two of them.
        least_s: The shortest.
        most_s: The longest.
    """

    every: int
    least_s: float
    most_s: float


@dataclass(frozen=True)
class Series:
    """A job.

    Attributes:
        seed: Of its random numbers.
        step_s: The time of a step.
        length_s: How long the job runs.
        jitter: Standard deviation of a step's time, as a share of it.
        wander: Standard deviation of a slow random change of the pace, as a share of it: other
            jobs on the machine, sequences of other lengths.
        stalls: Evaluations, checkpoints, recompilations.
        warm_up: Number of first steps that take up to five times as long.
        changes: Pairs of a time and a factor: from then on steps take that many times as long.
        drift: The factor that the time of a step reaches at the end, little by little.
        pauses: Pairs of a time and a length: the process is stopped, and its readings too.
    """

    seed: int
    step_s: float
    length_s: float = DAY_S
    jitter: float = 0.05
    wander: float = 0.0
    stalls: tuple[Stalls, ...] = ()
    warm_up: int = 0
    changes: tuple[tuple[float, float], ...] = ()
    drift: float = 1.0
    pauses: tuple[tuple[float, float], ...] = ()

    def ends_s(self) -> NDArray[np.float64]:
        """Return when each step ends, in seconds from the beginning."""
        chance = np.random.default_rng(self.seed)
        slowest = max(1.0, self.drift) * max([1.0, *(factor for _, factor in self.changes)])
        fastest = min([1.0, self.drift, *(factor for _, factor in self.changes)])
        count = int(self.length_s / self.step_s / fastest) + 10
        spread = np.sqrt(np.log1p(self.jitter**2))
        length = self.step_s * chance.lognormal(-(spread**2) / 2, spread, count)
        length[: self.warm_up] *= np.linspace(5, 1, self.warm_up) if self.warm_up else 1
        if self.wander:
            length *= np.exp(self._wander(chance, count, slowest))
        for stalls in self.stalls:
            places = np.arange(stalls.every, count, stalls.every)
            length[places] += chance.uniform(stalls.least_s, stalls.most_s, len(places))
        if self.drift != 1:
            length *= np.linspace(1, self.drift, count)
        for at_s, factor in self.changes:  # in the order of time
            length[np.searchsorted(np.cumsum(length), at_s) :] *= factor
        for at_s, pause_s in self.pauses:
            length[np.searchsorted(np.cumsum(length), at_s)] += pause_s
        return np.cumsum(length)

    def _wander(
        self, chance: np.random.Generator, count: int, slowest: float
    ) -> NDArray[np.float64]:
        """Return the log of a factor for each step, which changes within some ten minutes."""
        every = max(1, int(60 / self.step_s / slowest))  # steps of a minute
        knots = count // every + 2
        noise, found = chance.normal(size=knots), np.zeros(knots)
        keep = np.exp(-1 / 10)
        for place in range(1, knots):
            found[place] = keep * found[place - 1] + np.sqrt(1 - keep**2) * noise[place]
        return self.wander * np.interp(np.arange(count) / every, np.arange(knots), found)

    def readings(self) -> Iterator[tuple[float, int]]:
        """Yield the step counter at each second: seconds since the epoch, and the step."""
        ends_s = self.ends_s()
        chance = np.random.default_rng(self.seed + 1)
        at_s = np.arange(1.0, min(self.length_s, ends_s[-1]))
        for began_s, pause_s in self.pauses:
            at_s = at_s[(at_s < began_s) | (at_s > began_s + pause_s)]
        at_s = at_s + chance.exponential(0.002, len(at_s))  # the thread wakes up a little late
        steps = np.searchsorted(ends_s, at_s, side="right")
        yield from zip((BEGAN_S + at_s).tolist(), steps.tolist(), strict=True)

    def onset(self) -> tuple[float, int]:
        """Return when the first change begins: seconds since the epoch, and the step."""
        step = int(np.searchsorted(self.ends_s(), self.changes[0][0]))
        return BEGAN_S + self.changes[0][0], step


def quiet(seed: int) -> Series:
    """Return a job of a day whose pace does not change, of any of the usual kinds."""
    chance = np.random.default_rng(seed)
    step_s = float(chance.choice([0.005, 0.022, 0.095, 0.3, 0.7, 2.0, 5.0, 12.0]))
    epoch = int(chance.uniform(600, 7200) / step_s)
    return Series(
        seed,
        step_s,
        jitter=float(chance.choice([0.02, 0.1, 0.3])),
        wander=float(chance.choice([0.0, 0.01, 0.03])),
        warm_up=int(chance.choice([0, 20, 80])),
        stalls=(
            Stalls(max(2, epoch), 10, 600),  # evaluations
            Stalls(max(2, epoch // int(chance.choice([1, 3, 10]))), 1, 60),  # checkpoints
            Stalls(int(chance.choice([7, 50, 500])), 0, step_s * 4),  # logs, a slow batch
            Stalls(max(2, int(40_000 / step_s)), 60, 900),  # recompilations
        ),
        pauses=((chance.uniform(1000, 80_000), chance.uniform(5, 900)),),
    )
