"""Threads of dynprof's own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from dynprof.process.threads import STACK, own_thread

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("asked", [0, 32_768, STACK // 2, STACK * 4])
def test_the_job_keeps_the_stack_size_that_it_asked_for(asked: int) -> None:
    """A thread of dynprof's that starts meanwhile changes it for a moment only."""
    ran: list[int] = []
    before = threading.stack_size(asked)
    try:
        thread = own_thread(lambda: ran.append(1), "dynprof-test")
        thread.start()
        thread.join()
    finally:
        after = threading.stack_size(before)
    assert (ran, after) == ([1], asked)


def test_a_job_with_the_smallest_stacks(tmp_path: Path) -> None:
    """Its captures are made, and it goes on."""
    code = f"""if True:
        import threading, time, pathlib
        threading.stack_size(32_768)
        import dynprof as dp
        dp.init({str(tmp_path)!r})
        (pathlib.Path({str(tmp_path)!r}) / "profiler_config.json").write_text('{{"active": 1}}')
        until = time.monotonic() + 60
        while dp.status().last_capture is None and time.monotonic() < until:
            dp.step()
            time.sleep(0.001)
        print(dp.status().last_capture)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert re.match("step_", done.stdout), done.stdout
