"""Measure what closing a window costs the training loop, next to ``torch.profiler``.

Both run in one process. The closing step ends the last recorded step. The extra time is the loop's
total delay from the opening of the window until the trace is on disk. It is relative to the same
loop without a window.

``closing.py [WINDOWS [DEVICE [MODEL ...]]]``. With ``cuda``, the device's activities are recorded
as well.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import dynprof as dp
from benchmarks.tables import print_table
from dynprof.backends.torch.detached_close_selftest import SELF_TEST

if TYPE_CHECKING:
    from collections.abc import Callable

    Window = Callable[[Callable[[], None], int, str, dict[str, bool]], tuple[float, float, int]]

WINDOWS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"
MODELS = sys.argv[3:] or ["encoder", "mlp", "conv"]
ACTIVE = (5, 20, 100)
PACE_STEPS = 20
SETTINGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "shapes, memory": {"record_shapes": True, "profile_memory": True},
    "stacks": {"with_stack": True},
}


def training(kind: str, layers: int = 6) -> Callable[[], None]:
    """Return a training step of a small model, or of an encoder with this number of layers."""
    torch.manual_seed(0)
    if kind == "encoder":
        layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        model: Any = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        batch = torch.randn(8, 16, 64)
    elif kind == "mlp":
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
        batch = torch.randn(128, 512)
    else:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3)
        )
        batch = torch.randn(8, 3, 32, 32)
    model, batch = model.to(DEVICE), batch.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def synchronise() -> None:
    """Wait until the device has finished its work."""
    if DEVICE != "cpu":
        getattr(torch, DEVICE).synchronize()


def pace_s(step: Callable[[], None]) -> float:
    """Return the seconds of a step without a profiler."""

    def steps() -> None:
        for _ in range(PACE_STEPS):
            step()
        synchronise()

    return timed(steps) / PACE_STEPS


def torch_window(
    step: Callable[[], None], active: int, folder: str, settings: dict[str, bool]
) -> tuple[float, float, int]:
    """Record with ``torch.profiler``; return closing and total seconds, and the number of steps."""
    schedule = torch.profiler.schedule(wait=0, warmup=0, active=active, repeat=1)
    handler = torch.profiler.tensorboard_trace_handler(folder, use_gzip=True)
    began_s = time.perf_counter()
    profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=handler, **settings)
    profiler.start()
    closing_s = 0.0
    for _ in range(active):
        step()
        closing_s = timed(profiler.step)
    synchronise()
    whole_s = time.perf_counter() - began_s
    profiler.stop()
    return closing_s, whole_s, active


def dynprof_window(
    step: Callable[[], None], active: int, folder: str, settings: dict[str, bool]
) -> tuple[float, float, int]:
    """Record with dynprof; return closing and total seconds, and the number of steps."""
    asked = Path(folder) / "asked.json"
    names = ["CPU"] if DEVICE == "cpu" else ["CPU", DEVICE.upper()]
    limits = {"max_seconds": None, "max_memory_mb": None}
    asked.write_text(
        json.dumps({"activities": names, "active": active, "limits": limits, **settings})
    )
    saved = dp.status().last_capture
    began_s = time.perf_counter()
    dp.start(asked)
    closing_s, steps = 0.0, 0
    while dp.status().last_capture == saved:
        step()
        steps += 1
        took_s = timed(dp.step)
        closing_s = took_s if steps == active else closing_s
    synchronise()
    return closing_s, time.perf_counter() - began_s, steps


def compare(kind: str, threads: int) -> list[tuple[str, ...]]:
    """Measure one model; return the rows of its table."""
    torch.set_num_threads(threads)
    step = training(kind)
    pace_s(step)
    rows = []
    for active in ACTIVE:
        for name, settings in SETTINGS.items():
            # Not in turns: memory that torch frees after a window goes back to the system. The next
            # window would pay for it.
            torch_found = measure(torch_window, step, active, settings)
            dynprof_found = measure(dynprof_window, step, active, settings)
            rows.append((str(active), name, *_figures(torch_found, dynprof_found)))
    return rows


def measure(
    window: Window, step: Callable[[], None], active: int, settings: dict[str, bool]
) -> list[tuple[float, float]]:
    """Return the time of the closing step and the extra time, in ms, of each window."""
    found = []
    for _ in range(WINDOWS):
        with tempfile.TemporaryDirectory() as folder:
            before_s = pace_s(step)
            closing_s, whole_s, steps = window(step, active, folder, settings)
            usual_s = (before_s + pace_s(step)) / 2
            found.append((closing_s * 1e3, (whole_s - usual_s * steps) * 1e3))
    return found


def _figures(
    torch_found: list[tuple[float, float]], dynprof_found: list[tuple[float, float]]
) -> tuple[str, ...]:
    closing = [[closing_ms for closing_ms, _ in found] for found in (torch_found, dynprof_found)]
    extra = [[extra_ms for _, extra_ms in found] for found in (torch_found, dynprof_found)]
    ratio = statistics.median(closing[0]) / statistics.median(closing[1])
    cells = [f"{statistics.median(ms):,.2f} ({max(ms):,.2f})" for ms in closing]
    lost = [f"{statistics.median(ms):,.0f} ({max(ms):,.0f})" for ms in extra]
    return (*cells, f"{ratio:,.0f}", *lost)


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    if DEVICE != "cpu":
        os.environ.setdefault("DYNPROF_CLOSE", "detached")
    head: tuple[str, ...] = ("steps", "recorded", "torch: closing, ms (worst)")
    head += ("dynprof: closing, ms (worst)", "ratio")
    head += ("torch: extra, ms (worst)", "dynprof: extra, ms (worst)")
    with tempfile.TemporaryDirectory() as folder:
        dp.init(folder)
        while SELF_TEST.answer is None:
            time.sleep(0.01)
        for kind in MODELS:
            for threads in (1, 2):
                title = f"Closing a window: {kind}, {threads} thread(s), {WINDOWS} windows each"
                print_table(title, head, compare(kind, threads))
        dp.shutdown()


if __name__ == "__main__":
    main()
