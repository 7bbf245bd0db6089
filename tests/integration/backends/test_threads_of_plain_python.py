"""Windows of plain Python record the calls of all threads that VizTracer can follow."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

from tests.integration.scripts import events, manifests, run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

THREADS = """
begin, end, over = threading.Barrier(4), threading.Barrier(4), []
def leaf():
    pass
def serve(count):
    while True:
        begin.wait()
        if over:
            return
        for _ in range(count):
            leaf()
        end.wait()
def work():
    begin.wait()
    leaf()
    end.wait()
    dp.step()
threads = [threading.Thread(target=serve, args=(count,)) for count in (2, 3, 5)]
for thread in threads:
    thread.start()
"""


def test_calls_of_threads_older_than_the_window_are_counted(tmp_path: Path) -> None:
    """Calls of threads older than the window are counted; up to Python 3.11 they are named."""
    printed = run_without_torch(
        tmp_path,
        THREADS
        + """
for _ in range(3):
    work()
    window(active=4)
    for _ in range(4):
        work()
    idle()
over.append(True)
begin.wait()
""",
    )
    assert printed == ""
    found = manifests(tmp_path)
    assert len(found) == 3
    for manifest in found:
        assert manifest.complete
        leaves = [e["tid"] for e in events(tmp_path, manifest) if e["name"].startswith("leaf ")]
        counts = sorted(Counter(leaves).values())
        if sys.version_info >= (3, 12):
            assert counts == [4, 8, 12, 20]
        else:
            assert counts == [4]
            (remark,) = manifest.remarks
            assert remark.count("(serve)") == 3


def test_threads_of_dynprof_are_left_out(tmp_path: Path) -> None:
    """One that starts in the window, as the writer of a slow step does, has no call in it."""
    printed = run_without_torch(
        tmp_path,
        """
from dynprof.runtime.threads import own_thread
def work():
    thread = own_thread(time.sleep, "dynprof-test", 0.01)
    thread.start()
    thread.join()
    dp.step()
for _ in range(3):
    work()
window(active=3)
for _ in range(3):
    work()
idle()
""",
    )
    assert printed == ""
    (manifest,) = manifests(tmp_path)
    calls = [one for one in events(tmp_path, manifest) if one["ph"] == "X"]
    assert any(one["name"].startswith("work ") for one in calls)
    main = next(one["tid"] for one in calls if one["name"].startswith("work "))
    assert [one["name"] for one in calls if one["tid"] != main] == []


def test_profile_functions_of_threads_are_restored_after_the_window(tmp_path: Path) -> None:
    """A profile function of the script stays where it was; other threads have none afterwards."""
    printed = run_without_torch(
        tmp_path,
        """
def own(frame, event, arg):
    pass
found, ready, ended = [], threading.Barrier(3), threading.Event()
def wait(function):
    sys.setprofile(function)
    ready.wait()
    ended.wait()
    found.append(sys.getprofile() is function)
    sys.setprofile(None)
threads = [threading.Thread(target=wait, args=(function,)) for function in (own, None)]
for thread in threads:
    thread.start()
ready.wait()
for _ in range(3):
    window(active=2)
    dp.step()
    dp.step()
    idle()
ended.set()
for thread in threads:
    thread.join()
print(found, sys.getprofile(), threading.getprofile())
""",
    )
    assert printed == "[True, True] None None\n"
    assert all(manifest.complete for manifest in manifests(tmp_path))
