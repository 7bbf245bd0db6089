"""What memory a capture takes while torch makes events of it, and what it leaves behind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from dynprof.backends.torch import TAKES
from tests.integration.scripts import manifests, run

if TYPE_CHECKING:
    from pathlib import Path

LOOP = """
import psutil
from dynprof.process import memory
torch.set_num_threads(1)
calls = list(range(25_000))
def calling():
    found = {}
    for value in calls:
        found.get(value)
def computing():
    for _ in range(300):
        torch.ones(3).relu()
def resident_mb():
    return psutil.Process().memory_info().rss / 1e6
def record(work, count, **settings):
    before, grown, most, over = resident_mb(), 0.0, [0.0], []
    allocated = memory.in_use_mb() or before
    def look():
        while not over:
            most[0] = max(most[0], resident_mb() - before)
            time.sleep(0.005)
    looking = threading.Thread(target=look)
    looking.start()
    window(active=count, **settings)
    for _ in range(count):
        work()
        grown = max(grown, (memory.in_use_mb() or resident_mb()) - allocated)
        dp.step()
    idle()
    over.append(True)
    looking.join()
    return grown, most[0]
"""


@pytest.mark.parametrize(
    ("work", "count", "settings"),
    [
        ("calling", 30, "with_stack=True"),
        ("computing", 40, "with_stack=True"),
        ("computing", 60, "profile_memory=True"),
        ("computing", 150, "record_shapes=True"),
    ],
)
def test_saving_takes_no_more_than_is_reckoned_with(
    tmp_path: Path, work: str, count: int, settings: str
) -> None:
    """As counted by a thread that looks at the process; and several times what recording takes."""
    run(
        tmp_path,
        LOOP
        + f"""
record({work}, 2, {settings})  # loads what the first window loads
grown, most = record({work}, {count}, {settings})
assert 2 * grown < most < {TAKES["with_stack" in settings]} * grown + 20, (grown, most)
""",
    )


def test_a_window_that_could_not_be_saved_closes_early(tmp_path: Path) -> None:
    """As little memory is free: what it has is saved, and training goes on."""
    log = run(
        tmp_path,
        LOOP
        + """
from dynprof.windows.this_process import ThisProcess
record(calling, 2, with_stack=True)
dp.shutdown()
memory_of = ThisProcess.__init__
def with_little(self, *args, **kwargs):
    memory_of(self, *args, **{**kwargs, "free_mb": lambda: 600.0})
ThisProcess.__init__ = with_little
dp.init("prof_config")
window(active=100_000, with_stack=True)
del calls[2500:]  # a step of as many as before would take a minute to save, of eight at least
while dp.status().state == "recording":
    calling()
    time.sleep(0.04)
    dp.step()
idle()
""",
    )
    manifest = max(manifests(tmp_path), key=lambda one: one.opened_at)
    assert 0 < manifest.steps.recorded < 100_000
    assert re.search(r"early: memory grows from step to step, by \d+ MB so far, as events", log)
    assert not manifest.complete
    assert manifest.trace


def test_what_saving_took_is_given_back(tmp_path: Path) -> None:
    """Else the allocator would keep it, for a capture as large that may never come."""
    run(
        tmp_path,
        LOOP
        + """
record(calling, 2, with_stack=True)
before = resident_mb()
grown, most = record(calling, 30, with_stack=True)
assert most > 700, most
deadline = time.monotonic() + 60
while resident_mb() > before + 200:
    assert time.monotonic() < deadline, (before, resident_mb())
    time.sleep(0.05)
""",
    )
