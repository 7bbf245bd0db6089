"""Times in log and manifests, and the clock of durations."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime

from dynprof.runtime.clock import SystemClock, iso, local


def test_times_are_those_of_datetime() -> None:
    """Datetime is not imported for them: that takes half as long as importing dynprof."""
    chance = random.Random(1)  # noqa: S311
    for _ in range(10_000):
        wall_s = round(4e9 * chance.random(), chance.choice([3, 7]))
        there = datetime.fromtimestamp(wall_s, UTC)
        assert iso(wall_s) == there.isoformat(timespec="milliseconds")
        assert local(wall_s) == there.astimezone().strftime("%H:%M:%S.%f")[:-3]


def test_durations_are_measured_by_a_monotonic_clock() -> None:
    """The machine's clock may be set; the clock of durations may not."""
    assert SystemClock.now_s in (time.monotonic, time.perf_counter)
