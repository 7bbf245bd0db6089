"""Threads that C begins: Python makes their states without the GIL, amid whatever it does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import manifests, run, run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

THREADS = """
import ctypes
libc, over = ctypes.CDLL(None), []
@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def in_python(_):
    return None
def begin_and_end():
    thread = ctypes.c_ulong()
    while not over:
        libc.pthread_create(ctypes.byref(thread), None, in_python, None)
        libc.pthread_join(thread, None)
beginning = [threading.Thread(target=begin_and_end, daemon=True) for _ in range(4)]
for thread in beginning:
    thread.start()
"""
END = """
over.append(True)
for thread in beginning:
    thread.join()
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python has a function for it from 3.12 on")
def test_calls_of_all_threads_are_traced_while_some_begin(tmp_path: Path) -> None:
    """On Python 3.11 that crashed within a second, of a state that was but half made."""
    run_without_torch(
        tmp_path,
        THREADS
        + """
from dynprof.process.profile_functions import ProfileFunction, take_off_each
ours = ProfileFunction.of_python(lambda *_: None)
resting = threading.Thread(target=time.sleep, args=(600,), daemon=True)
resting.start()
sys.setswitchinterval(1e-5)
until_s = time.monotonic() + 4
while time.monotonic() < until_s:
    ours.put_on_all()
    ours.take_off_given()
    take_off_each()
"""
        + END,
    )


WINDOWS = """
for _ in range(20):
    window(active=2, {settings})
    for _ in range(3):
        dp.step()
    idle()
"""


def test_windows_of_plain_python_while_threads_of_c_begin(tmp_path: Path) -> None:
    """Each is whole, and the job ends well."""
    printed = run_without_torch(
        tmp_path,
        THREADS
        + WINDOWS.format(settings="")
        + END
        + """
found = [json.loads(path.read_text()) for path in Path("prof_config").rglob("*.info.json")]
print(sum(one["complete"] for one in found))
""",
    )
    assert printed == "20\n"


IS_3_11 = sys.version_info[:2] == (3, 11)


@pytest.mark.skipif(IS_3_11, reason="torch itself crashes there: such windows are refused")
def test_windows_with_stacks_while_threads_of_c_begin(tmp_path: Path) -> None:
    """As a training's are, of autograd's."""
    pytest.importorskip("torch", reason="torch is not installed")
    run(tmp_path, THREADS + WINDOWS.format(settings="with_stack=True") + END)
    assert len(manifests(tmp_path)) == 20


@pytest.mark.skipif(not IS_3_11, reason="other Pythons list no states that are half made")
def test_windows_with_stacks_are_refused_where_many_threads_come(tmp_path: Path) -> None:
    """Of such windows one in a hundred crashed; one without stacks is served."""
    pytest.importorskip("torch", reason="torch is not installed")
    log = run(
        tmp_path,
        THREADS
        + """
from dynprof.process.thread_arrivals import ARRIVALS
while not any(look.of_c for look in ARRIVALS._looks):
    time.sleep(0.05)
window(active=2, with_stack=True)
steps(3)
assert dp.status().edits[-1].outcome == "refused", dp.status().edits[-1]
window(active=2)
steps(3)
idle()
assert dp.status().edits[-1].outcome == "saved", dp.status().edits[-1]
"""
        + END,
    )
    assert "with_stack cannot be recorded: threads that C begins keep coming into Python" in log
    assert len(manifests(tmp_path)) == 1


POOLS = """
from concurrent.futures import ThreadPoolExecutor
def in_a_pool():
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(abs, range(8)))
    dp.step()
from dynprof.process.thread_arrivals import ARRIVALS, MOST_PER_S
def are_many():
    looks = tuple(ARRIVALS._looks)
    return looks and looks[-1].come - looks[0].come > MOST_PER_S * (looks[-1].at_s - looks[0].at_s)
while not are_many():
    in_a_pool()
window(active=2, with_stack=True)
for _ in range(3):
    in_a_pool()
idle()
assert dp.status().edits[-1].outcome == "saved", dp.status().edits[-1]
"""


@pytest.mark.skipif(not IS_3_11, reason="other Pythons list no states that are half made")
def test_windows_with_stacks_of_a_job_that_begins_many_threads_of_pythons(tmp_path: Path) -> None:
    """A pool for each step, say: those make no state without the GIL."""
    pytest.importorskip("torch", reason="torch is not installed")
    run(tmp_path, POOLS)
    assert len(manifests(tmp_path)) == 1
