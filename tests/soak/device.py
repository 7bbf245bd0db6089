"""Windows of every kind, one after the other, on a busy device.

``device.py [SECONDS [cuda|cpu]]`` trains on the device. Two more streams, one of them on another
thread, and replays of a graph keep it busy as well. Windows with memory, stacks, marks and
histories follow each other. Each way of closing runs for SECONDS. The exit code is 1 if a window is
missing or memory grew.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

import dynprof as dp
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from tests.processes import ROOT, run

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda"
WAYS = ("inline", "detached")
KINDS: tuple[dict[str, Any], ...] = (
    {"active": 3},
    {"active": 5, "record_shapes": True, "profile_memory": True},
    {"active": 2, "with_stack": True},
    {"active": 4, "experimental_config": {"profiler_level": "Level1", "mstx": True}},
    {"active": 2, "memory_snapshot": True},
)
PLACES = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
WARM, MOST_MB = 20, 100.0
"""The number of warm-up windows, and the growth of memory in MB that is allowed afterwards."""


def training() -> Callable[[], None]:
    """Return a training step with the other work on the device."""
    layers = [torch.nn.Linear(256, 256) for _ in range(6)]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    batch = torch.randn(64, 256, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    replay: Callable[[], object] = contextlib.nullcontext
    stream: Callable[[], Any] = contextlib.nullcontext
    if DEVICE == "cuda":
        graph, kept = torch.cuda.CUDAGraph(), torch.zeros(256, 256, device=DEVICE)
        with torch.cuda.graph(graph):
            kept.mul(2).add(1)
        side = torch.cuda.Stream()
        replay, stream = graph.replay, lambda: torch.cuda.stream(side)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        replay()
        with stream():
            batch.sin()
        dp.mstx.mark("step")

    return step


def elsewhere(ended: threading.Event) -> None:
    """Compute on a stream of another thread."""
    own = torch.cuda.stream(torch.cuda.Stream()) if DEVICE == "cuda" else contextlib.nullcontext()
    with own:
        square = torch.randn(128, 128, device=DEVICE)
        while not ended.wait(0.0005):
            (square @ square).sum()


def windows(step: Callable[[], None]) -> list[float]:
    """Open one window after the other; return the memory in MB after each."""
    asked, process = Path("asked.json"), psutil.Process()
    memory_mb: list[float] = []
    ends_s = time.monotonic() + SECONDS
    while time.monotonic() < ends_s:
        asked.write_text(json.dumps(KINDS[len(memory_mb) % len(KINDS)]))
        saved = dp.status().last_capture
        dp.start(asked)
        while dp.status().last_capture == saved:
            step()
            dp.step()
        memory_mb.append(process.memory_info().rss / 1e6)
    return memory_mb


def job() -> int:
    """Run in the current folder, and check the results."""
    ended = threading.Event()
    other = threading.Thread(target=elsewhere, args=(ended,))
    other.start()
    step = training()
    step()
    dp.init("prof_config")
    while SELF_TEST.answer is None:
        time.sleep(0.01)
    memory_mb = windows(step)
    ended.set()
    other.join()
    dp.shutdown()
    manifests = [json.loads(path.read_text()) for path in Path().rglob("*.info.json")]
    complete = sum(manifest["complete"] for manifest in manifests)
    grown_mb = memory_mb[-1] - max(memory_mb[: WARM + 1])
    print(f"{len(memory_mb)} windows, {complete} complete")
    print(f"memory {memory_mb[-1]:,.0f} MB, {grown_mb:+,.1f}")
    print(*sorted({manifest["closing"] for manifest in manifests}), sep="\n")
    return int(complete < len(memory_mb) or grown_mb > MOST_MB)


def main() -> int:
    """Run each way of closing in its own process."""
    failed = 0
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "DYNPROF_CLOSE": way, "PYTHONPATH": PLACES}
            command = [sys.executable, "-m", "tests.soak.device", str(SECONDS), DEVICE, "job"]
            found = run(command, cwd=folder, env=env, patience=3 + SECONDS / 30)
            print(f"{way}: exit code {found.returncode}\n{found.stdout}{found.stderr[-2000:]}")
            failed |= found.returncode
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(job() if sys.argv[3:] == ["job"] else main())
