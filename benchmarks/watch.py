"""Measure the watch for slow steps: a loop without it, with it, and under py-spy, in turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import dynprof as dp
from benchmarks.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_S, PAIRS = 2.0, 40
STEP_MS, SHARE_S, PER_S = 20.0, 30.0, 20
NUMBER = 200_000
OFF: dict[str, object] = {}
ON: dict[str, object] = {"slower_than": 1.5}


def work(model: torch.nn.Module, rounds: int) -> None:
    """Train as much as takes about 20 ms."""
    for _ in range(rounds):
        model(torch.randn(64, 128)).square().mean().backward()


def calibrated(model: torch.nn.Module) -> int:
    """Return how many rounds take a step's time."""
    work(model, 50)
    began_s = time.perf_counter()
    work(model, 200)
    return max(1, round(STEP_MS / 1e3 / ((time.perf_counter() - began_s) / 200)))


def switch(config: Path, watch: dict[str, object]) -> None:
    """Switch the watch on or off, and wait until it is."""
    content = json.loads(config.read_text())
    config.write_text(json.dumps({**content, "watch": watch}))
    while (dp.status().watch is not None) != bool(watch):
        time.sleep(0.01)
        dp.step()
    time.sleep(0.2)


@contextlib.contextmanager
def spied(folder: Path) -> Iterator[None]:
    """Let py-spy record this process as often as the watch samples."""
    command = ("py-spy", "record", "--pid", str(os.getpid()), "--rate", str(PER_S))
    output = "--duration", "60", "--format", "raw", "--output", str(folder / "stacks")
    with subprocess.Popen(
        [Path(sys.prefix, "bin", command[0]), *command[1:], *output],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as recorder:
        time.sleep(1.0)  # it reads the symbols of all libraries first
        try:
            yield
        finally:
            recorder.send_signal(signal.SIGINT)


def block(model: torch.nn.Module, rounds: int, block_s: float) -> tuple[float, float]:
    """Return a step's median time, and its mean CPU time on this thread, in ms."""
    times = []
    used_s, until_s = time.thread_time(), time.perf_counter() + block_s
    while (began_s := time.perf_counter()) < until_s:
        work(model, rounds)
        dp.step()
        times.append(time.perf_counter() - began_s)
    used_s = time.thread_time() - used_s
    return statistics.median(times) * 1e3, used_s / len(times) * 1e3


def main() -> None:
    """Measure and print."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    rounds = calibrated(model)
    step_ms = list[float]()
    more: dict[str, list[tuple[float, float]]] = {"watch": [], "py-spy": []}
    with tempfile.TemporaryDirectory() as directory:
        dp.init(directory)
        config = Path(directory, "profiler_config.json")
        for number in range(pairs):
            measured = {}
            for mode in _order("", "watch", "py-spy", turned=number):
                switch(config, ON if mode == "watch" else OFF)
                with spied(Path(directory)) if mode == "py-spy" else contextlib.nullcontext():
                    measured[mode] = block(model, rounds, BLOCK_S)
            for mode, found in more.items():
                pairs_of = zip(measured[mode], measured[""], strict=True)
                wall, used = (100 * (with_it / without - 1) for with_it, without in pairs_of)
                found.append((wall, used))
            step_ms.append(measured[""][0])
        switch(config, OFF)
        calls_ns = [min(timeit.repeat(dp.step, number=NUMBER)) / NUMBER * 1e9]
        switch(config, ON)
        calls_ns.append(min(timeit.repeat(dp.step, number=NUMBER)) / NUMBER * 1e9)
        switch(config, OFF)  # those steps were short, and the usual time must not be theirs
        switch(config, ON)
        block(model, rounds, SHARE_S)
        watch_now = dp.status().watch
        dp.shutdown()
    assert watch_now
    rows = [
        ("a step without", f"{statistics.median(step_ms):.2f} ms"),
        *(
            (f"{what} with {mode}", in_words([one[place] for one in found]))
            for mode, found in more.items()
            for place, what in enumerate(("a step", "CPU time of the training thread"))
        ),
        ("its own share of a CPU, by status", f"{watch_now.share_percent:.2f}%"),
        ("its interval between samples", f"{watch_now.interval_ms:.0f} ms"),
        ("slow steps in that time", f"{watch_now.slow_steps}"),
        ("`dp.step()` without", f"{calls_ns[0]:.0f} ns"),
        ("`dp.step()` with it", f"{calls_ns[1]:.0f} ns"),
    ]
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    print_table(f"The watch for slow steps ({load})", ("what", "value"), rows)


def _order(*modes: str, turned: int) -> deque[str]:
    """Return the modes in another order each time."""
    order = deque(modes)
    order.rotate(turned)
    return order


def in_words(values: list[float]) -> str:
    """Return the median and the quartiles of changes in percent."""
    first, median, last = statistics.quantiles(values, n=4)
    return f"{median:+.2f}% ({first:+.2f}% to {last:+.2f}%)"


if __name__ == "__main__":
    main()
