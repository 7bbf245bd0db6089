"""Measure the time from a save to a pending request, for several kinds of loops.

The job itself measures: from just before it writes the file until the request is in the inbox. The
next ``step()`` finds it there. The loop continues during that time. Its steps share the interpreter
with the threads that read the edit, so the kind of loop matters.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.tables import percentile, print_table
from dynprof.backends import all_backends
from dynprof.config import template_text
from dynprof.requests.inbox import Inbox
from dynprof.runtime.layout import CONFIG_NAME, Layout
from dynprof.runtime.rank import find_rank
from dynprof.session.session import Session
from dynprof.windows.process_context import ProcessContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.requests.request import Request

SAVES = int(sys.argv[1]) if len(sys.argv) > 1 else 1000


def sleeping() -> None:
    """Sleep, as a loop that waits for a device does."""
    time.sleep(0.001)


def python_only() -> None:
    """Compute in Python without releasing the interpreter."""
    sum(n * n for n in range(10_000))


def torch_loop() -> Callable[[], None]:
    """Return a training step of a small model on the CPU, on one thread."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 256)

    def train_one_step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return train_one_step


def measure(step: Callable[[], None]) -> list[float]:
    """Return the times of all saves, in ms."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = root / CONFIG_NAME
        settings: dict[str, Any] = json.loads(template_text(("CPU",)))
        config.write_text(json.dumps(settings))
        layout = Layout.here(root, 0)
        process = ProcessContext(layout, find_rank(), all_backends())
        session = Session(process, watching=("events", ""))
        session.begin()
        times = _Operator(session, config, settings)
        times.start()
        while times.is_alive():
            step()
            session.inbox.step += 1
        session.inbox.cancel()
        session.end("the benchmark is over")
    return times.milliseconds


class _Operator(threading.Thread):
    """Save, wait until the request is in the inbox, and repeat."""

    def __init__(self, session: Session, config: Path, settings: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.session, self.config, self.settings = session, config, settings
        self.milliseconds: list[float] = []
        self.pending = threading.Event()
        put = Inbox.put

        def noticing(inbox: Inbox, request: Request, free_disk_mb: float) -> Request | None:
            self.pending_s = time.perf_counter()
            self.pending.set()
            return put(inbox, request, free_disk_mb)

        self._noticing = patch.object(Inbox, "put", noticing)

    def run(self) -> None:
        with self._noticing:
            for number in range(SAVES):
                text = json.dumps({**self.settings, "start_step": 10**9 + number})
                self.pending.clear()
                began_s = time.perf_counter()
                self.config.write_text(text)
                self.pending.wait()
                self.milliseconds.append((self.pending_s - began_s) * 1e3)


def main() -> None:
    """Measure and print."""
    loops: dict[str, Callable[[], None]] = {
        "waiting for a device (sleeps of 1 ms)": sleeping,
        "pure Python": python_only,
    }
    try:
        loops["torch on the CPU"] = torch_loop()
    except ImportError:
        print("torch is not installed; its loop is left out")
    rows = []
    for name, step in loops.items():
        times = measure(step)
        figures = (percentile(times, 50), percentile(times, 99), max(times))
        rows.append((name, *(f"{ms:.2f} ms" for ms in figures)))
    head = ("the job's loop", "median", "p99", "worst")
    print_table(f"From save to pending request, {SAVES} saves", head, rows)


if __name__ == "__main__":
    main()
