"""A part of a finding's time is not larger than the whole, also if work runs at the same time."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.findings import device
from tests.unit.analysis.made_jobs import COMPUTE, SIDE, STEP, Job

if TYPE_CHECKING:
    from pathlib import Path

OPERATORS = ("c10d::allreduce_", "c10d::allgather_")


@pytest.mark.parametrize("seed", range(8))
def test_what_starts_collectives_has_a_part_of_their_time(tmp_path: Path, seed: int) -> None:
    """Each microsecond counts once, for the collective that began first."""
    dice, job = random.Random(seed), Job()  # noqa: S311 - nothing is secret here
    job.step()
    free = dict.fromkeys((COMPUTE, SIDE, 21, 22), 100)
    ran: list[tuple[int, int, str]] = []
    for number in range(dice.randint(2, 12)):
        name, stream = dice.choice(OPERATORS), dice.choice([*free])
        begin, took = free[stream] + dice.randint(0, 20), dice.randint(10, 60)
        job.host(name, 6 * number, 6)
        job.launch("ncclDevKernel", 6 * number, begin, took, stream)
        ran.append((begin, begin + took, name))
        free[stream] = begin + took
    first: dict[int, str] = {}
    for begin, end, name in sorted(ran, key=lambda one: one[:2]):
        for at in range(begin, min(end, STEP)):
            first.setdefault(at, name)
    measured = job.measured(tmp_path)
    found = device.exposed_communication(measured, measured.breakdown).detail
    assert f"Collectives run for {len(first) / 1000:.3g} ms of a step, all of it" in found
    parts = {name: float(time) for name, time in re.findall(r"(c10d::\w+), ([\d.]+) ms", found)}
    counts = {name: list(first.values()).count(name) / 1000 for name in parts}
    assert parts
    assert parts == {name: float(f"{time:.3g}") for name, time in counts.items()}
