"""A script that profiles itself while a window is prepared, open or waiting always goes first.

Libkineto has one session. Each of these cases crashed in it before dynprof tracked the owner of the
session, so each runs in its own process.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_the_script_profiles_inside_a_window(tmp_path: Path, closing: str) -> None:
    """The script's profile is whole, the window gives way with a reason, and the next one works."""
    log = run(
        tmp_path,
        """
        def opened(**settings):
            window(**settings)
            while dp.status().state not in ("warmup", "recording"):
                steps(1)
        for warmup in (0, 3):
            for its_profiler in (profile, elsewhere):
                opened(active=10, warmup=warmup)
                steps(1)
                its_profiler()
                steps(20)
                assert dp.status().state in ("idle", "saving"), dp.status()
                profile()
                opened(active=2)
                steps(3)
                profile()
        """,
        closing,
    )
    assert log.count("early: the script started a profiler of its own") == 4
    assert log.count("2 of 2 steps") == 4


def test_the_scripts_profiler_outlives_the_window(tmp_path: Path) -> None:
    """A profile that begins in the window and ends after it is whole."""
    log = run(
        tmp_path,
        """
        window(active=2)
        steps(1)
        with torch.profiler.profile() as mine:
            steps(10)
        assert sum(event.name == "aten::add" for event in mine.events()) == 10
        """,
    )
    assert re.search(r"of 2 steps.*; early: the script started a profiler of its own", log)


def test_the_script_profiles_while_a_window_is_collected(tmp_path: Path) -> None:
    """A profile that begins right after a window waits for the events, and is whole."""
    log = run(
        tmp_path,
        """
        window(active=30)
        while dp.status().state == "recording":
            for _ in range(100):
                work()
            steps(1)
        profile()
        elsewhere()
        """,
    )
    assert "(detached" in log
    assert "30 of 30 steps" in log
    assert "saved step_" in log


def test_a_schedule_of_the_scripts_own(tmp_path: Path) -> None:
    """A window may open while the script's schedule waits; the script's warm-up goes first."""
    log = run(
        tmp_path,
        """
        saved = []
        schedule = torch.profiler.schedule(wait=4, warmup=2, active=2, repeat=3)
        with torch.profiler.profile(schedule=schedule, on_trace_ready=saved.append) as mine:
            for step in range(30):
                work()
                mine.step()
                if step in (5, 9, 12, 13, 14):
                    window(active=3)
                dp.step()
        assert len(saved) == 3
        """,
    )
    assert "another torch.profiler is active in this process" in log
    assert "Traceback" not in log or "the script started a torch.profiler" in log


def test_a_profiler_on_another_thread_is_seen(tmp_path: Path) -> None:
    """A window is refused while the script profiles on any thread."""
    log = run(
        tmp_path,
        """
        running, done = threading.Event(), threading.Event()
        def profile_for_long():
            with torch.profiler.profile():
                running.set()
                done.wait()
        thread = threading.Thread(target=profile_for_long)
        thread.start()
        running.wait()
        window(active=1)
        assert dp.status().state == "idle"
        done.set()
        thread.join()
        window(active=1)
        steps(2)
        """,
    )
    assert "another torch.profiler is active in this process" in log
    assert "1 of 1 step" in log


@pytest.mark.parametrize(("memory", "alive"), [(True, True), (True, False), (False, False)])
def test_training_on_a_thread_that_main_outlives(tmp_path: Path, alive: bool, memory: bool) -> None:
    """After shutdown() on main the window is kept; one bound to its thread, only if that steps."""
    log = run(
        tmp_path,
        f"""
        opened, over = threading.Event(), threading.Event()
        def train():
            window(active=100_000, profile_memory={memory})
            steps(3)
            opened.set()
            while {alive} and not over.is_set():
                time.sleep(0.001)
                steps(1)
        thread = threading.Thread(target=train)
        thread.start()
        opened.wait()
        if not {alive}:
            thread.join()
        dp.shutdown()
        over.set()
        thread.join()
        """,
        unloads=True,
    )
    kept = "early: shutdown() was called"
    lost = "only the thread that opened the window could have kept it"
    assert (lost if memory and not alive else kept) in log
    assert "stopped at step" in log
