"""Windows of plain Python in a job that switches greenlets: several stacks on one thread."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import events, manifests, run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("greenlet") is None, reason="greenlet is not installed"
)

GREENLETS = """
import random, warnings, greenlet
warnings.simplefilter("error")
chance = random.Random(7)
calls = 0
def leaf():
    global calls
    calls += 1
def through():
    leaf()
    greenlet.getcurrent().parent.switch()
def deep(depth):
    leaf()
    if depth:
        deep(depth - 1)
    if chance.random() < 0.5:
        through()
    leaf()
def work():
    while True:
        deep(chance.randrange(5))
def others():
    return [greenlet.greenlet(work) for _ in range(4)]
def loop(workers, count, step):
    for _ in range(count):
        for worker in workers:
            worker.switch()
        leaf()
        step()
"""


def called(folder: Path, manifest: Any) -> Counter[str]:
    """Count the calls in a capture."""
    return Counter(event["name"].split(" ")[0] for event in events(folder, manifest))


def test_greenlets_that_are_switched_in_a_window(tmp_path: Path) -> None:
    """Every call is there in which none was switched, and how many there were is said."""
    printed = run_without_torch(
        tmp_path,
        GREENLETS
        + """
workers = others()
loop(workers, 20, dp.step)
for _ in range(3):
    window(active=10, warmup=2)
    loop(workers, 2, dp.step)
    before = calls
    loop(workers, 10, dp.step)
    print(calls - before)
    loop(workers, 20, lambda: None)
    idle()
assert greenlet.gettrace() is None
assert not dp.status().problems, dp.status()
""",
    )
    windows = manifests(tmp_path)
    assert len(windows) == 3
    for manifest, count in zip(windows, printed.split(), strict=True):
        assert manifest.lost == (
            "greenlets were switched 80 times; calls open at a switch are not there",
        )
        found = called(tmp_path, manifest)
        assert (found["leaf"], found["through"]) == (int(count), 0)


def test_a_trace_function_of_the_scripts_stays(tmp_path: Path) -> None:
    """It sees each switch, within the window and after it, closed on whichever thread."""
    run_without_torch(
        tmp_path,
        GREENLETS
        + """
seen = []
def trace(event, greenlets):
    seen.append(event)
greenlet.settrace(trace)
workers = others()
for _ in range(3):
    window(active=4)
    loop(workers, 3, dp.step)
    thread = threading.Thread(target=dp.step)
    thread.start()
    thread.join()
    idle()
    loop(workers, 2, lambda: None)
assert len(seen) == 3 * 5 * 4 * 2, len(seen)
window(active=5)
loop(workers, 5, dp.step)
idle()
assert greenlet.gettrace() is trace
""",
    )


def test_greenlets_of_another_thread_are_told_of(tmp_path: Path) -> None:
    """Nothing follows their switches: who reads the times of that thread is warned."""
    run_without_torch(
        tmp_path,
        GREENLETS
        + """
begun, end = threading.Event(), threading.Event()
def run():
    loop(others(), 2, lambda: None)
    begun.set()
    end.wait()
thread = threading.Thread(target=run)
thread.start()
begun.wait()
window(active=1)
dp.step()
idle()
end.set()
thread.join()
""",
    )
    (manifest,) = manifests(tmp_path)
    assert manifest.lost == (
        "greenlets of other threads are not followed; times of calls there may be wrong",
    )


def test_viztracer_that_stops_is_told_in_the_manifest(tmp_path: Path) -> None:
    """Greenlets of another thread make it stop: the job hears nothing of it, the reader does."""
    printed = run_without_torch(
        tmp_path,
        GREENLETS
        + """
def returns_elsewhere():
    other = greenlet.greenlet(through)
    other.switch()
    return other
kept, shown = [], []
warnings.simplefilter("always")
warnings.showwarning = lambda *about, **_: shown.append(about)
window(active=1)
thread = threading.Thread(target=lambda: kept.append(returns_elsewhere()))
thread.start()
thread.join()
dp.step()
idle()
window(active=1)
leaf()
dp.step()
idle()
print(len(kept), shown)
""",
    )
    assert printed == "1 []\n"
    first, second = manifests(tmp_path)
    assert first.reason == (
        "VizTracer stopped before the end, at a return from a call it had not seen begin"
    )
    assert second.complete
    assert called(tmp_path, second)["leaf"] == 1
