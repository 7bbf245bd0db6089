"""A loop without torch. Run it, then edit prof_config/profiler_config.json in another terminal."""

from __future__ import annotations

import contextlib
import random
import time

import dynprof as dp


def simulate(source: random.Random) -> float:
    """Estimate pi from random points."""
    points = [(source.random(), source.random()) for _ in range(20_000)]
    return 4 * sum(x * x + y * y < 1 for x, y in points) / len(points)


def main(steps: int = 1_000_000) -> None:
    """Repeat the estimate; each one is a step. Ctrl-C ends it."""
    source = random.Random(0)
    dp.init("prof_config")
    total = 0.0
    for step in range(1, steps + 1):
        total += simulate(source)
        dp.step()
        if step % 500 == 0:
            print(f"step {step}: pi is about {total / step:.4f}")
            time.sleep(0.1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
