"""Measure ``dp.step()`` without a request, next to other profilers' calls in one run."""

from __future__ import annotations

import contextlib
import io
import tempfile
import timeit
import warnings
from typing import TYPE_CHECKING

import dynprof as dp
from benchmarks.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBER, REPEAT = 200_000, 15


def empty() -> None:
    """Do nothing: the minimum of any call."""


class Counter:
    """The minimum of any profiler's step: count, and test one thing."""

    def __init__(self) -> None:
        self.count, self.due = 0, False

    def step(self) -> None:
        self.count += 1
        if self.due:
            raise AssertionError


def nanoseconds(calls: dict[str, Callable[[], object]], number: int) -> dict[str, float]:
    """Return the best time of each call. Calls take turns, so that each sees the same load."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(REPEAT):
        for name, call in calls.items():
            seconds = timeit.timeit("call()", globals={"call": call}, number=number)
            best[name] = min(best[name], seconds / number * 1e9)
    return best


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        dp.init(directory)
        calls: dict[str, Callable[[], object]] = {
            "an empty Python function": empty,
            "a method that counts and tests": Counter().step,
            "dp.step(), idle": dp.step,
        }
        best = nanoseconds(calls, NUMBER)
        with contextlib.suppress(ImportError):
            best |= _torch()
        dp.shutdown()
    least = best["an empty Python function"]
    rows = [(name, f"{ns:,.0f} ns", f"{ns / least:.2f}") for name, ns in best.items()]
    print_table("An idle step", ("call", "time", "ratio to empty"), rows)


def _torch() -> dict[str, float]:
    import torch.profiler

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        waiting = torch.profiler.schedule(wait=10**9, warmup=0, active=1)
        with torch.profiler.profile(schedule=waiting) as profiler:
            return nanoseconds({"torch.profiler's step(), waiting": profiler.step}, 2_000)


if __name__ == "__main__":
    main()
