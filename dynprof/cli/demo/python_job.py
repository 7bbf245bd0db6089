"""Fits a line by gradient descent in plain Python: ``python_job.py DIR STOP_FILE``."""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path

import dynprof as dp

Points = list[tuple[float, float]]


def gradient(points: Points, slope: float, offset: float) -> tuple[float, float]:
    """Return the gradient of the mean squared error."""
    errors = [(slope * x + offset - y, x) for x, y in points]
    return sum(e * x for e, x in errors) / len(errors), sum(e for e, _ in errors) / len(errors)


def load_batch(source: random.Random) -> Points:
    """Return points near the line y = 3x + 1."""
    xs = [source.uniform(-1, 1) for _ in range(500)]
    return [(x, 3 * x + 1 + source.gauss(0, 0.1)) for x in xs]


def main(directory: str, stop_file: str) -> None:
    """Train with one batch per step."""
    source = random.Random(0)  # noqa: S311 - nothing is secret here
    slope = offset = 0.0

    dp.init(directory, role="")
    for number in itertools.count():
        # A system call in every short step would keep the GIL from the thread that saves.
        if number % 100 == 0 and Path(stop_file).exists():
            break
        by_slope, by_offset = gradient(load_batch(source), slope, offset)
        slope, offset = slope - 0.1 * by_slope, offset - 0.1 * by_offset
        dp.step()

    print(json.dumps({"steps": dp.status().step, "loss": (slope - 3) ** 2 + (offset - 1) ** 2}))


if __name__ == "__main__":
    main(*sys.argv[1:])
