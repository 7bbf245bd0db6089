"""Measure an idle step with each source of steps, next to the same loop without dynprof."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from typing import TYPE_CHECKING

import dynprof as dp
from benchmarks.idle_step import nanoseconds
from benchmarks.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBER, ROUNDS = 20_000, 4
WATCHED = 20
"""Steps of an optimizer, after which dynprof knows that it ends the iterations."""


def train_step() -> None:
    """Replace a training iteration; takes no time."""


def iteration() -> None:
    """The body of a loop."""
    train_step()


def stepping() -> None:
    """The body of a loop that calls step() itself."""
    train_step()
    dp.step()


def measured(
    loop: Callable[[], object], steps: str | float, bare: Callable[[], object]
) -> tuple[str, ...]:
    """Return the time of a loop without dynprof, with a source, and the difference.

    The loops take turns, so that both see the same load.
    """
    without, found = [], []
    for _ in range(ROUNDS):
        without.append(nanoseconds({"": bare}, NUMBER // ROUNDS)[""])
        with tempfile.TemporaryDirectory() as directory:
            dp.init(directory, steps=steps)
            for _ in range(WATCHED):
                loop()
            found.append(nanoseconds({"": loop}, NUMBER // ROUNDS)[""])
            assert dp.status().step or isinstance(steps, float), f"{steps} gave no step"
            dp.shutdown()
    least, most = min(without), min(found)
    return f"{least:,.0f} ns", f"{most:,.0f} ns", f"{most - least:,.0f} ns"


def main() -> None:
    """Measure and print."""
    how = "sys.monitoring" if sys.version_info >= (3, 12) else "a wrapper"
    name = f"{__name__}:train_step"
    rows = [
        ("dp.step()", *measured(stepping, "script", iteration)),
        (f"a named function, by {how}", *measured(iteration, name, iteration)),
        ("a period of 1 s", *measured(iteration, 1.0, iteration)),
    ]
    with contextlib.suppress(ImportError):
        step = _an_optimizers_step()
        what = "the optimizer, whose step does nothing"
        rows.append((what, *measured(step, "optimizer", step)))
    columns = ("source", "the loop without", "with", "a step")
    print_table("An idle step, by where it comes from", columns, rows)


def _an_optimizers_step() -> Callable[[], object]:
    """Return an optimizer's step that does only what torch does around each step."""
    import torch

    class Idle(torch.optim.Optimizer):  # type: ignore[misc]
        """An optimizer without any work."""

        def step(self, closure: object = None) -> None:
            """Do nothing."""

    return Idle([torch.zeros(1, requires_grad=True)], {}).step


if __name__ == "__main__":
    main()
