"""What closing a window costs the training loop, beside ``torch.profiler`` in the same run.

The closing step is the one that ends the last recorded step; the extra time is all that the loop
lost, from the opening of the window until the trace is on disk, against the same loop without.
``closing.py [WINDOWS [DEVICE]]``; with ``cuda`` the device's activities are recorded as well.
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
from dynprof.backends.selftest import SELF_TEST

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOWS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"
ACTIVE = (5, 20, 100)
SETTINGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "shapes, memory": {"record_shapes": True, "profile_memory": True},
    "stacks": {"with_stack": True},
}


def training(kind: str) -> Callable[[], None]:
    """Return a training step of a small model."""
    torch.manual_seed(0)
    if kind == "encoder":
        layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        model: Any = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
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
    """Return the seconds that a call takes."""
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def torch_window(
    step: Callable[[], None], active: int, folder: str, settings: dict[str, bool]
) -> tuple[float, float, int]:
    """Record with ``torch.profiler``; return closing and whole time in s, and the steps taken."""
    schedule = torch.profiler.schedule(wait=0, warmup=0, active=active, repeat=1)
    handler = torch.profiler.tensorboard_trace_handler(folder, use_gzip=True)
    began_s = time.perf_counter()
    profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=handler, **settings)
    profiler.start()
    closing_s = 0.0
    for _ in range(active):
        step()
        closing_s = timed(profiler.step)
    whole_s = time.perf_counter() - began_s
    profiler.stop()
    return closing_s, whole_s, active


def dynprof_window(
    step: Callable[[], None], active: int, folder: str, settings: dict[str, bool]
) -> tuple[float, float, int]:
    """Record with dynprof; return closing and whole time in s, and the steps taken."""
    asked = Path(folder) / "asked.json"
    names = ["CPU"] if DEVICE == "cpu" else ["CPU", DEVICE.upper()]
    asked.write_text(json.dumps({"activities": names, "active": active, **settings}))
    saved = dp.status().last_capture
    began_s = time.perf_counter()
    dp.start(asked)
    closing_s, steps = 0.0, 0
    while dp.status().last_capture == saved:
        step()
        steps += 1
        took_s = timed(dp.step)
        closing_s = took_s if steps == active else closing_s
    return closing_s, time.perf_counter() - began_s, steps


def compare(kind: str, threads: int) -> list[tuple[str, ...]]:
    """Measure one model; return the rows of its table."""
    torch.set_num_threads(threads)
    step = training(kind)
    rows = []
    for active in ACTIVE:
        for name, settings in SETTINGS.items():
            found: dict[str, list[tuple[float, float]]] = {"torch": [], "dynprof": []}
            for _ in range(WINDOWS):
                for who, window in (("torch", torch_window), ("dynprof", dynprof_window)):
                    with tempfile.TemporaryDirectory() as folder:
                        bare_s = statistics.median(timed(step) for _ in range(10))
                        closing_s, whole_s, steps = window(step, active, folder, settings)
                        found[who].append((closing_s, whole_s - bare_s * steps))
            rows.append((str(active), name, *_figures(found)))
    return rows


def _figures(found: dict[str, list[tuple[float, float]]]) -> tuple[str, ...]:
    closing = {who: [c * 1e3 for c, _ in pairs] for who, pairs in found.items()}
    extra = {who: statistics.median(e for _, e in pairs) * 1e3 for who, pairs in found.items()}
    ratio = statistics.median(closing["torch"]) / statistics.median(closing["dynprof"])
    cells = [
        f"{statistics.median(closing[who]):,.2f} ({max(closing[who]):,.2f})"
        for who in ("torch", "dynprof")
    ]
    return (*cells, f"{ratio:,.0f}", f"{extra['torch']:,.0f}", f"{extra['dynprof']:,.0f}")


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    if DEVICE != "cpu":
        os.environ.setdefault("DYNPROF_CLOSE", "detached")
    head: tuple[str, ...] = ("steps", "recorded", "torch: closing, ms (worst)")
    head += ("dynprof: closing, ms (worst)", "ratio", "torch: extra, ms", "dynprof: extra, ms")
    with tempfile.TemporaryDirectory() as folder:
        dp.init(folder)
        while SELF_TEST.answer is None:
            time.sleep(0.01)
        for kind in ("encoder", "mlp", "conv"):
            for threads in (1, 2):
                title = f"Closing a window: {kind}, {threads} thread(s), {WINDOWS} windows each"
                print_table(title, head, compare(kind, threads))
        dp.shutdown()


if __name__ == "__main__":
    main()
