"""A rest in a storm: all windows end, nothing of them is left, and the next one is whole."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import dynprof as dp
from dynprof.backends.torch.kineto import KINETO
from dynprof.backends.torch.open_annotations import ANNOTATIONS
from dynprof.windows.driver import UNENDED

if TYPE_CHECKING:
    from tests.storm.memory import MemoryGuard
    from tests.storm.training import Training

ROOT = Path("prof_config")
CONFIG = ROOT / "profiler_config.json"
REST_S = 240.0
"""Timeout. A save took 200 s while eight other processes used two CPUs."""
ENDS = ("saved", "failed", "refused")
AT_REST = ("idle", "waiting", "sending")


def settled(training: Training, memory: MemoryGuard) -> tuple[int, list[str]]:
    """Train until all windows have ended and one more is saved.

    Returns:
        The number of trained steps, and the errors.
    """
    trained, deadline_s, asked, wrong = 0, time.monotonic() + REST_S, "", list[str]()
    edit = {"active": 2, "activities": ["CPU"], "metadata": {"rest": time.monotonic_ns()}}
    while time.monotonic() < deadline_s:
        training.step()
        dp.step()
        trained += 1
        status = dp.status()
        last = status.edits[-1] if status.edits else None
        if asked and last and last.sha256 == asked and last.outcome in ENDS:
            if last.outcome != "saved" or not is_complete(last.capture):
                wrong.append(f"the window at rest: {last}")
            KINETO.wait(REST_S)
            memory.look()
            return trained, wrong
        if not asked and (status.state not in AT_REST or KINETO.collecting):
            dp.stop()
        elif not asked:
            wrong += left_over()
            text = json.dumps(edit)
            CONFIG.write_text(text)
            asked = hashlib.sha256(text.encode()).hexdigest()
        if status.state in ("recording", "saving"):
            time.sleep(0.001)
    wrong.append(f"no rest after {REST_S} s: {dp.status().state}, {dp.status().edits[-1]}")
    return trained, wrong


def is_complete(capture: str | None) -> bool:
    """Return whether a capture has all requested files."""
    return bool(json.loads((ROOT / str(capture)).read_text())["complete"])


def left_over() -> list[str]:
    """Return what must not exist while nothing is recorded.

    The recording of a discarded window may exist until the thread that opened it ends a step.
    """
    if UNENDED:
        return []
    facts = {
        "dynprof has libkineto's session": KINETO.has_window,
        "the script has libkineto's session": KINETO.script_is_profiling,
        "ranges are followed": bool(ANNOTATIONS._open),
        "a profiler is on": torch.autograd._profiler_enabled(),
    }
    return [f"at rest, {what}" for what, found in facts.items() if found]
