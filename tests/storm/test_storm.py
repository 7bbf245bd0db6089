"""The parts of storms; ``make storm`` runs them with each malloc and each way of closing."""

from __future__ import annotations

import json
import os
import random
import re
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from dynprof.config import parse_config
from dynprof.config.model import ProfilerConfig
from tests import processes, warm_interpreter
from tests.storm import edits
from tests.storm.children import STUCK
from tests.storm.job import EVENTS
from tests.storm.memory import MOST_MB, MemoryGuard

if TYPE_CHECKING:
    from pathlib import Path


def test_each_event_of_a_storm_is_guaranteed_to_be_survived() -> None:
    """Each event has the words of a row of "Survived" in docs/guarantees.md."""
    page = (processes.ROOT / "docs" / "guarantees.md").read_text()
    survived = page.split("## Survived")[1].split("\n## ")[0]
    rows = set(re.findall(r"^\| (.*?) \|", survived, re.M))
    events = {str(event.__doc__).removesuffix(".") for event in EVENTS}
    assert len(events) == len(EVENTS) > 15
    assert events - rows == set()


def test_edits_are_valid_and_differ_in_each_setting() -> None:
    """Edits vary each setting that matters to a job of one process with a CPU."""
    chance, drawn = random.Random(1), defaultdict[str, set[str]](set)  # noqa: S311
    for _ in range(1000):
        asked = edits.edit(chance, 100)
        parse_config(json.dumps(asked).encode())  # raises if it is not valid
        for name, value in {**asked, **asked["experimental_config"]}.items():
            drawn[name].add(json.dumps(value))
    same = {name for name, values in drawn.items() if len(values) == 1}
    assert same == {"activities"}
    left_out = {"schema_", "ranks", "is_rank", "rank_list", "agreement", "storage", "metadata"}
    left_out |= {"async_mode", "watch", "every", "keep"}  # the last three are no single window
    assert ProfilerConfig.model_fields.keys() - drawn.keys() == left_out


def test_memory_growth_names_the_settings() -> None:
    """The error names settings since the last rest. First-use growth of each kind is allowed."""
    guard = MemoryGuard()
    guard.look(500.0)
    guard.note(["with_stack", "backend python"])
    guard.look(500.0 + MOST_MB)
    assert not guard.complaints()
    guard.note(["profile_memory"])
    guard.look(510.0 + MOST_MB)
    first, second = guard.complaints()
    assert f"{MOST_MB:,.0f} MB while edits had: with_stack in 1, backend python in 1" in first
    assert "by 10 MB while edits had: profile_memory in 1" in second


STUCK_CHILDREN = """
import random, time, torch
from torch.utils.data import DataLoader
from tests.storm import children
class Slow:
    def __len__(self):
        return 1
    def __getitem__(self, _):
        time.sleep(600)
one_worker = random.Random()
one_worker.randint = lambda *_: 1
children.watch()
children.dp.step = lambda: time.sleep(1)  # which is what a job is watched for
print(children.fork())
children.STUCK_S = 1.5
children.DataLoader = lambda _, **settings: DataLoader(Slow(), **settings)
print(children.load(one_worker))
torch.ones = lambda _: time.sleep(600)
print(children.fork())
"""


def test_a_child_that_hangs_in_plain_torch_ends_with_its_stacks(tmp_path: Path) -> None:
    """A child that hangs in plain torch prints its stacks and ends. In dynprof it hangs the job."""
    env = {**os.environ, "PYTHONPATH": str(processes.ROOT)}
    done = warm_interpreter.run(STUCK_CHILDREN, tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", str(STUCK), str(STUCK)]
    assert done.stderr.count("Timeout (0:00:01.5") == 2
    assert "__getitem__" in done.stderr
