"""Memory that a capture takes while torch makes its events, and its release."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.integration.scripts import events, manifests, run

if TYPE_CHECKING:
    from pathlib import Path

LOOP = """
import psutil
from dynprof.backends.torch.torch_recording import RecordedEvents
from dynprof.windows.process_context import ProcessContext
torch.set_num_threads(1)
free_mb, loads = [1e6], []
init, load_of = ProcessContext.__init__, RecordedEvents.load
def with_little(self, *args, **kwargs):
    init(self, *args, **{**kwargs, "free_mb": lambda: free_mb[0]})
def noted(self, **kwargs):
    loads.append(load_of(self, **kwargs))
    return loads[-1]
ProcessContext.__init__, RecordedEvents.load = with_little, noted
dp.shutdown()
dp.init("prof_config")
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
    most, over = [0.0], []
    def look():
        while not over:
            most[0] = max(most[0], resident_mb())
            time.sleep(0.005)
    window(active=count, **settings)
    for _ in range(count):
        work()
        before = resident_mb()
        dp.step()
    looking = threading.Thread(target=look)
    looking.start()
    idle()
    over.append(True)
    looking.join()
    return most[0] - before
def both():
    calling()
    computing()
"""


@pytest.mark.parametrize(
    ("work", "count", "settings"),
    [
        ("calling", 6, "with_stack=True"),
        ("computing", 10, ""),
        ("computing", 10, "record_shapes=True, profile_memory=True"),
        ("both", 4, "with_stack=True, record_shapes=True, profile_memory=True"),
    ],
)
def test_events_and_memory_of_a_window_are_estimated_before_it_is_saved(
    tmp_path: Path, work: str, count: int, settings: str
) -> None:
    """The estimates are within a factor of two of the trace's events and of the measured memory."""
    run(
        tmp_path,
        LOOP
        + f"""
record({work}, 2, {settings})  # loads what the first window loads
took_mb = record({work}, {count}, {settings})
told_mb = loads[-1].saving_mb
assert told_mb / 2 < took_mb < told_mb * 2, (took_mb, told_mb)
""",
    )
    manifest = manifests(tmp_path)[-1]
    count = len(events(tmp_path, manifest))
    assert count / 2 < manifest.cost.events < count * 2


def test_a_window_with_stacks_has_no_more_events_than_its_limit(tmp_path: Path) -> None:
    """The window keeps whole steps, as many as it says, and the log names the limit."""
    log = run(
        tmp_path,
        LOOP
        + """
record(both, 20, with_stack=True, limits={"max_events": 150_000})
""",
    )
    (manifest,) = manifests(tmp_path)
    found = events(tmp_path, manifest)
    steps = [one for one in found if one["name"].startswith("ProfilerStep#")]
    assert 0 < manifest.steps.recorded < 20
    assert len({one["name"] for one in steps}) == manifest.steps.recorded
    assert 50_000 < len(found) < 200_000
    assert re.search(r"early: about \d+,000 events are recorded, limits.max_events is 150,000", log)
    assert re.search(r"a step records about \d+,000 events; \d+ steps take about \d", log)


@pytest.mark.parametrize(
    ("closing", "settings"), [("detached", ""), ("inline", ", profile_memory=True")]
)
def test_a_window_without_memory_to_save_is_not_collected(
    tmp_path: Path, closing: str, settings: str
) -> None:
    """The manifest says so. The process does not grow, records the next window, and ends well."""
    run(
        tmp_path,
        LOOP
        + f"""
record(calling, 1, with_stack=True{settings})
free_mb[0] = 50.0
calls *= 20
grown_mb = record(calling, 1, with_stack=True{settings})
assert grown_mb < 50, grown_mb
free_mb[0] = 1e6
del calls[100:]
record(calling, 2, with_stack=True{settings})
free_mb[0] = 10.0
calls *= 1_000
record(calling, 1, with_stack=True{settings})
""",
        closing=closing,
    )
    first, discarded, after, last = manifests(tmp_path)
    for manifest in (discarded, last):
        assert (manifest.complete, manifest.trace) == (False, None)
        assert re.match(r"to save its [\d,]+ events would take about [\d,]+ MB", manifest.reason)
    assert first.complete
    assert after.complete
    names = [one["name"] for one in events(tmp_path, after)]
    assert sum(name.endswith(": calling") for name in names) == 2


def test_memory_of_saving_is_released(tmp_path: Path) -> None:
    """The allocator returns the memory, because another large capture may never come."""
    run(
        tmp_path,
        LOOP
        + """
from dynprof.captures import exporter
exporter.KEPT_MB = 50.0
record(calling, 2, with_stack=True)
before = resident_mb()
most = record(calling, 10, with_stack=True)
assert most > 230, most
deadline = time.monotonic() + 60
while resident_mb() > before + 70:
    assert time.monotonic() < deadline, (before, resident_mb())
    time.sleep(0.05)
""",
    )


@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_events_are_released_before_the_next_window_may_open(tmp_path: Path, closing: str) -> None:
    """Released while the next window records, they would hide the memory of its events."""
    run(
        tmp_path,
        LOOP
        + """
from dynprof.captures.exporter import Exporter
from dynprof.runtime.memory import in_use_mb
end, in_use = Exporter._end, []
def noting(self, *outcome):
    end(self, *outcome)
    in_use.append(in_use_mb())
Exporter._end = noting
record(computing, 1, with_stack=True)  # loads what the first window loads
record(calling, 1, with_stack=True)
while len(in_use) < 2:
    time.sleep(0.001)
assert in_use[1] < in_use[0] + 10, in_use
""",
        closing=closing,
    )
    assert manifests(tmp_path)[-1].cost.events > 20_000
