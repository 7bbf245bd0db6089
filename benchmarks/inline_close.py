"""Measure what a detached and an inline close cost the training, with the installed torch.

The table shows the closing step and the longest step around it. It also shows the training thread's
CPU time for every 10,000 events of the trace. dynprof prints this time if windows close
inline. ``python -m benchmarks.inline_close [WINDOWS]``.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import dynprof as dp
from benchmarks.closing import SETTINGS, training
from benchmarks.tables import print_table
from dynprof.backends.torch.detached_close_selftest import SELF_TEST

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOWS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
STEPS, AFTER = 20, 5


def window(
    step: Callable[[], None], folder: Path, settings: dict[str, bool]
) -> tuple[float, float, float, float]:
    """Record a window.

    Returns:
        The duration of the closing ``dp.step()`` in ms. The longest of the closing step and the
        next five, in ms. The trace's events. The CPU time of the closing ``dp.step()`` in
        ms for every 10,000 events.
    """
    asked = folder / "asked.json"
    asked.write_text(json.dumps({"activities": ["CPU"], "active": STEPS, **settings}))
    saved = dp.status().last_capture
    dp.start(asked)
    found: list[tuple[float, float, float]] = []
    while dp.status().last_capture == saved or len(found) < STEPS + AFTER:
        began_s = time.perf_counter()
        step()
        ended_s, used_s = time.perf_counter(), time.thread_time()
        dp.step()
        now_s = time.perf_counter()
        times = now_s - began_s, now_s - ended_s, time.thread_time() - used_s
        found.append((times[0] * 1e3, times[1] * 1e3, times[2] * 1e3))
    manifest = json.loads((folder / str(dp.status().last_capture)).read_text())
    (trace,) = folder.rglob(manifest["trace"])
    events = len(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])
    _, closing_ms, used_ms = found[STEPS - 1]
    around = found[STEPS - 1 : STEPS + AFTER]
    return (
        closing_ms,
        max(longest_ms for longest_ms, _, _ in around),
        events,
        used_ms / events * 1e4,
    )


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    step, rows = training("encoder", layers=4), []
    with tempfile.TemporaryDirectory() as folder:
        dp.init(folder)
        while SELF_TEST.answer is None:
            step()
        for kind, settings in SETTINGS.items():
            for how in ("detached", "inline"):
                os.environ["DYNPROF_CLOSE"] = how
                window(step, Path(folder), settings)
                found = [window(step, Path(folder), settings) for _ in range(WINDOWS)]
                closing_ms, longest_ms, events, used_ms = map(
                    statistics.median, zip(*found, strict=True)
                )
                cells = (f"{closing_ms:,.2f}", f"{longest_ms:,.1f}", f"{events:,.0f}")
                rows.append((kind, how, *cells, f"{used_ms:.2f}"))
        dp.shutdown()
    title = f"Closing {STEPS} steps of a 4-layer encoder, torch {torch.__version__}"
    head = ("recorded", "close", "closing, ms", "longest step there, ms", "events")
    print_table(title, (*head, "CPU time for 10,000 events, ms"), rows)


if __name__ == "__main__":
    main()
