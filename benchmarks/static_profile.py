"""Compare a recorded step under ``dynprof.profiler.profile`` and under torch's profiler.

One run alternates the same loop without a profiler, with torch's and with dynprof's.
``static_profile.py [ROUNDS]``.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.closing import training
from benchmarks.tables import print_table
from dynprof import profiler as ours

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 15
STEPS = 20
SETTINGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "shapes, memory": {"record_shapes": True, "profile_memory": True},
    "stacks": {"with_stack": True},
}


def recorded_step_ms(kind: Any, step: Callable[[], None], **settings: bool) -> float:
    """Return the mean time of a recorded step."""
    active = kind.schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    with kind.profile(schedule=active, **settings) as prof:
        for _ in range(2):
            step()
            prof.step()
        began_s = time.perf_counter()
        for number in range(STEPS):
            step()
            if number < STEPS - 1:
                prof.step()
        took_s = time.perf_counter() - began_s
    return took_s / STEPS * 1e3


def bare_step_ms(step: Callable[[], None]) -> float:
    """Return the mean time of a step."""
    began_s = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - began_s) / STEPS * 1e3


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    for model in ("encoder", "mlp"):
        step = training(model)
        for name, settings in SETTINGS.items():
            rows.append((model, name, *compared(step, settings)))
    head = ("model", "recorded", "no profiler", "torch", "dynprof", "ratio", "quartiles of torch")
    print_table(f"A recorded step, medians of {ROUNDS} rounds of {STEPS} steps", head, rows)


def compared(step: Callable[[], None], settings: dict[str, bool]) -> tuple[str, ...]:
    """Return a row: the medians, their ratio, and the spread of torch's own rounds.

    The order changes with each round, because memory that one profiler frees slows the next.
    """
    times: dict[Any, list[float]] = {torch.profiler: [], ours: []}
    bare: list[float] = []
    for number in range(ROUNDS):
        for kind in (torch.profiler, ours) if number % 2 else (ours, torch.profiler):
            bare.append(bare_step_ms(step))
            times[kind].append(recorded_step_ms(kind, step, **settings))
    medians = [statistics.median(values) for values in (bare, *times.values())]
    low, _, high = statistics.quantiles(times[torch.profiler], n=4)
    return (
        *(f"{ms:.2f} ms" for ms in medians),
        f"{medians[2] / medians[1]:.3f}",
        f"{low:.2f} to {high:.2f}",
    )


if __name__ == "__main__":
    main()
