"""The memory of imagined jobs, once a minute for a day, with a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BEGAN_S = 1_800_000_000
"""When each job begins, in seconds since the epoch."""
MINUTES = 1440
"""A day."""


@dataclass(frozen=True)
class Memory:
    """A job, its memory in MB.

    Attributes:
        seed: Of its random numbers.
        base_mb: What it has from the beginning.
        noise_mb: Standard deviation of a minute.
        warm_up_mb: What it gains in the first ten minutes.
        cache_mb: What a cache holds once it is full.
        cache_minutes: In which it becomes full but for a third, again and again.
        evaluation_mb: What an evaluation needs in addition.
        every_minutes: From one evaluation to the next.
        evaluation_minutes: How long one takes.
        prefetch_mb: Range of what the data loader has ready.
        plateaus: Pairs of a minute and MB: steps of a fragmented allocator.
        leak_from: The minute from which it leaks.
        leak_mb: What it leaks in an hour.
    """

    seed: int
    base_mb: float = 4000.0
    noise_mb: float = 3.0
    warm_up_mb: float = 0.0
    cache_mb: float = 0.0
    cache_minutes: float = 60.0
    evaluation_mb: float = 0.0
    every_minutes: int = 120
    evaluation_minutes: int = 10
    prefetch_mb: float = 0.0
    plateaus: tuple[tuple[int, float], ...] = ()
    leak_from: int = 0
    leak_mb: float = 0.0

    def values_mb(self) -> NDArray[np.float64]:
        """Return the memory of each minute."""
        chance = np.random.default_rng(self.seed)
        minute = np.arange(MINUTES)
        found = self.base_mb + chance.normal(0, self.noise_mb, MINUTES)
        found += self.warm_up_mb * np.minimum(1, minute / 10)
        found += self.cache_mb * (1 - np.exp(-minute / self.cache_minutes))
        place = minute % self.every_minutes
        within = (minute >= self.every_minutes) & (place < self.evaluation_minutes)
        found += within * self.evaluation_mb * (place + 1) / self.evaluation_minutes
        found += self.prefetch_mb * chance.random(MINUTES)
        for at, mb in self.plateaus:
            found[at:] += mb
        if self.leak_mb:
            found += self.leak_mb / 60 * np.maximum(0, minute - self.leak_from)
        return found

    def minutes(self, steps: int = 60) -> Iterator[tuple[int, int, float]]:
        """Yield each minute: seconds since the epoch, the step, and the memory in MB."""
        for place, mb in enumerate(self.values_mb().tolist()):
            yield BEGAN_S + 60 * place, steps * place, round(mb)


def quiet(seed: int) -> Memory:
    """Return a job of a day that does not leak, of any of the usual kinds."""
    chance = np.random.default_rng(seed)
    base_mb = float(chance.choice([600, 4000, 30_000, 200_000]))
    jumps = np.sort(chance.integers(15, MINUTES, 8))
    sizes = chance.uniform(0.002, 0.02, 8) * base_mb / (1 + np.arange(8))
    return Memory(
        seed,
        base_mb=base_mb,
        noise_mb=float(chance.choice([0.5, 0.001 * base_mb, 0.004 * base_mb])),
        warm_up_mb=float(chance.uniform(0, 1)) * base_mb,
        cache_mb=float(chance.choice([0, 0.05, 0.3])) * base_mb,
        cache_minutes=float(chance.choice([5, 20, 60, 180])),
        evaluation_mb=float(chance.choice([0, 0.1, 0.5])) * base_mb,
        every_minutes=int(chance.integers(30, 300)),
        evaluation_minutes=int(chance.integers(1, 25)),
        prefetch_mb=float(chance.choice([0, 0.01, 0.05])) * base_mb,
        plateaus=tuple((int(at), float(mb)) for at, mb in zip(jumps, sizes, strict=True)),
    )
