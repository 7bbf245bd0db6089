"""A script that audits what Python does: its hook lets other threads run where none may."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import run, run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

BEFORE_3_12 = sys.version_info < (3, 12)
HOOK = """
def hook(name, arguments):
    if name == "sys.setprofile":
        time.sleep(0.0005)
over, missing = threading.Event(), []
def begin_and_end():
    while not over.is_set():
        ran = []
        threads = [threading.Thread(target=ran.append, args=(None,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        missing.extend([None] * (8 - len(ran)))
makers = [threading.Thread(target=begin_and_end) for _ in range(2)]
"""


def test_windows_of_plain_python(tmp_path: Path) -> None:
    """Before Python 3.12 the process crashed, or threads of the script's never ran."""
    outcome = run_without_torch(
        tmp_path,
        HOOK
        + """
sys.addaudithook(hook)
for maker in makers:
    maker.start()
for _ in range(20):
    window(active=2)
    for _ in range(4):
        dp.step()
        time.sleep(0.005)
    idle()
over.set()
for maker in makers:
    maker.join()
assert not missing, len(missing)
print(dp.status().edits[-1].outcome)
assert dp.status().edits[-1].outcome != "refused" or "addaudithook" in dp.status().edits[-1].text
""",
    )
    assert outcome.split() == ["refused" if BEFORE_3_12 else "saved"]


def test_a_hook_that_comes_within_a_window(tmp_path: Path) -> None:
    """No thread stays traced, and none is changed that has ended."""
    run_without_torch(
        tmp_path,
        HOOK
        + """
traced = []
def long():
    over.wait()
    traced.append(sys.getprofile())
staying = [threading.Thread(target=long) for _ in range(4)]
for thread in (*staying, *makers):
    thread.start()
window(active=2)
dp.step()
time.sleep(0.05)
sys.addaudithook(hook)
dp.step()
idle()
assert sys.getprofile() is None and threading.getprofile() is None
over.set()
for thread in (*staying, *makers):
    thread.join()
assert traced == [None] * 4, traced
print(dp.status().edits[-1].outcome)
""",
    )


def test_windows_of_torch_with_stacks(tmp_path: Path) -> None:
    """Refused; torch itself walks over the states of threads there, and crashes."""
    pytest.importorskip("torch", reason="torch is not installed")
    log = run(
        tmp_path,
        """
        import sys
        sys.addaudithook(lambda *_: None)
        window(active=1, with_stack=True)
        steps(2)
        window(active=1)
        steps(2)
        idle()
        assert dp.status().edits[-1].outcome == "saved"
        """,
    )
    assert "/backend: with_stack cannot be recorded: the script audits what Python does" in log
