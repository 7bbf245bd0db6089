"""Measure what phases and marks cost a training step of about 5 ms, next to none.

The last row shows the cost of a window for a job with marks.

``marked_steps.py [ROUNDS]`` alternates blocks of steps with and without marks, in the order with,
without, without, with. A slow drift of the machine's speed then affects both alike. The table also
shows the training thread's CPU time, which other processes disturb less. It excludes the time
of dynprof's own threads.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch

import dynprof as dp
import dynprof.plugin
from benchmarks.marks import window
from benchmarks.tables import print_table
from dynprof import mstx
from dynprof.backends.torch.detached_close_selftest import SELF_TEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Times = tuple[float, float]
    """Times of a step in ms: elapsed, and of the thread's CPU."""

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
UNTIMED, STEPS = 5, 20
"""Steps of a block. Python first has to specialise functions that have just been replaced."""
MARKS = 100
RUNS, RUN = 7, 400
"""The number of runs and of steps in each, with and without a window in turns."""
STEP_MS = 5.0
"""The training step of which the table shows shares."""


class Training:
    """A loop with all phases that the plugin supports in a single process."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        rows = torch.utils.data.TensorDataset(torch.randn(32 * 1000, 512))
        self._loader = torch.utils.data.DataLoader(rows, batch_size=32)
        self._batches = self._forever()

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def _train(self) -> None:
        (batch,) = next(self._batches)
        self._optimizer.zero_grad()
        self._model(batch).square().mean().backward()
        self._optimizer.step()

    def step(self, marks: int) -> None:
        """Train a step and set this number of marks in it."""
        self._train()
        for _ in range(marks):
            mstx.mark("here")
        dp.step()

    def apart(self, marks: int) -> tuple[float, float]:
        """Return the mean us of marks during the training, and of ``dp.step()``."""
        took = []
        for _ in range(RUN + UNTIMED):
            self._train()
            began_s = time.perf_counter()
            for _ in range(marks):
                mstx.mark("here")
            marked_s = time.perf_counter()
            dp.step()
            took.append((marked_s - began_s, time.perf_counter() - marked_s))
        of_marks, of_steps = zip(*took[UNTIMED:], strict=True)
        return statistics.mean(of_marks) * 1e6, statistics.mean(of_steps) * 1e6

    def block(self, marks: int = 0) -> Times:
        """Return the mean times of a block's steps."""
        for _ in range(UNTIMED):
            self.step(marks)
        began_s, worked_s = time.perf_counter(), time.thread_time()
        for _ in range(STEPS):
            self.step(marks)
        took_s, worked_s = time.perf_counter() - began_s, time.thread_time() - worked_s
        return took_s / STEPS * 1e3, worked_s / STEPS * 1e3


@contextlib.contextmanager
def plugin() -> Iterator[None]:
    """Add phases."""
    dynprof.plugin.install()
    try:
        yield
    finally:
        dynprof.plugin.uninstall()


def marks_alone(folder: str) -> AbstractContextManager[None]:
    """Record marks only."""
    return window(folder, profiler_level="Level_none")


@contextlib.contextmanager
def recorded(folder: str) -> Iterator[None]:
    """Add phases and record marks."""
    with plugin(), marks_alone(folder):
        yield


def compared(training: Training, folder: str) -> dict[str, list[tuple[Times, Times]]]:
    """Return step times without and with marks, for each way of marking and each round."""
    ways: dict[str, tuple[Callable[[], AbstractContextManager[None]], int, int]] = {
        "nothing: what the method is out by": (contextlib.nullcontext, 0, 0),
        "import dynprof.plugin, no window": (plugin, 0, 0),
        "the same, in a window of marks alone": (lambda: recorded(folder), 0, 0),
        f"the same with {MARKS} marks a step": (lambda: recorded(folder), MARKS, 0),
        f"a window, both with {MARKS} marks a step": (lambda: marks_alone(folder), MARKS, MARKS),
    }
    found: dict[str, list[tuple[Times, Times]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (entered, marks, usual) in ways.items():
            first = _block_in(entered(), training, marks)
            without = _mean(training.block(usual), training.block(usual))
            found[name].append((without, _mean(first, _block_in(entered(), training, marks))))
    return found


def taken_apart(training: Training, folder: str) -> list[tuple[str, ...]]:
    """Return rows: the cost of marks and of the step, without and in a window."""
    without, within = [], []
    for _ in range(RUNS):
        without.append(training.apart(MARKS))
        with marks_alone(folder):
            within.append(training.apart(MARKS))
    rows: list[tuple[str, ...]] = []
    sums = [0.0, 0.0]
    for place, what in enumerate((f"{MARKS} marks", "dp.step()")):
        before = statistics.median(run[place] for run in without)
        after = statistics.median(run[place] for run in within)
        sums = [sums[0] + before, sums[1] + after]
        rows.append(_apart_row(what, before, after))
    return [*rows, _apart_row("both", *sums)]


def _apart_row(what: str, before: float, after: float) -> tuple[str, ...]:
    share = (after - before) / (STEP_MS * 1e3)
    return what, f"{before:.1f} us", f"{after:.1f} us", f"{after - before:+.1f} us", f"{share:.2%}"


def _block_in(entered: AbstractContextManager[None], training: Training, marks: int) -> Times:
    with entered:
        return training.block(marks)


def _mean(one: Times, other: Times) -> Times:
    return (one[0] + other[0]) / 2, (one[1] + other[1]) / 2


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    dynprof.plugin.uninstall()
    with tempfile.TemporaryDirectory() as folder:
        dp.init(folder)
        while SELF_TEST.answer is None:
            time.sleep(0.01)
        training = Training()
        training.block()
        parts = taken_apart(training, folder)
        rows = [_row(name, times) for name, times in compared(training, folder).items()]
        dp.shutdown()
    columns = ("what", "no window", "window of marks alone", "more", f"of {STEP_MS:g} ms")
    apart = f"Apart, amid the training: medians of {RUNS} runs of {RUN} steps"
    print_table(apart, columns, parts)
    title = f"Marks in a training step, medians of {ROUNDS} rounds of 4 blocks of {STEPS} steps"
    head = ("what", "without", "with", "more", "quartiles", "more CPU time")
    print_table(title, head, rows)


def _row(name: str, times: list[tuple[Times, Times]]) -> tuple[str, ...]:
    clock = [(before[0], after[0]) for before, after in times]
    without, with_it = (statistics.median(column) for column in zip(*clock, strict=True))
    more = [(after / before - 1) * 100 for before, after in clock]
    worked = [(after[1] / before[1] - 1) * 100 for before, after in times]
    low, median, high = statistics.quantiles(more, n=4)
    shown = (f"{without:.3f} ms", f"{with_it:.3f} ms", f"{median:+.2f}%")
    return (name, *shown, f"{low:+.2f}% to {high:+.2f}%", f"{statistics.median(worked):+.2f}%")


if __name__ == "__main__":
    main()
