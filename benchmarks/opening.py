"""Measure how early ranks know of an agreed window: ``python -m benchmarks.opening``.

Three ranks run under torchrun with gloo. Their steps take 1 to 100 ms, half of it in Python, and
end with a collective. Rank 0 saves a config, waits until all ranks have saved their window, and
repeats.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tables import print_table
from dynprof import dynamic_profile
from dynprof.ranks.leader import Leader
from dynprof.ranks.member import Member

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynprof.ranks.messages import Opening, Reply
    from dynprof.session.session import Session

RANKS, WINDOWS, STEPS_MS = 3, 100, (1, 5, 20, 100)
PAUSE_S = 0.02  # Pause between the end of a window and the next save.
WAIT_S = 30.0  # Timeout; a window takes a second.


class Measured:
    """When steps began, when the leader had all replies, and when this rank knew the step."""

    def __init__(self) -> None:
        self.begun: dict[int, float] = {}
        self.told: dict[int, tuple[int, float]] = {}
        self.agreed: dict[int, tuple[int, float, float]] = {}
        member, leader = Member._open, Leader._open

        def member_opens(rank: Member, opening: Opening) -> str:
            found = member(rank, opening)
            self.told[opening.number] = opening.step, time.monotonic()
            return found

        def leader_opens(leading: Leader, current: Any, ready: Mapping[int, Reply]) -> None:
            took_s = current.answered_s - current.asked_s
            step = max(one.step for one in ready.values())
            self.agreed[current.number] = step, current.answered_s, took_s
            leader(leading, current, ready)

        Member._open, Leader._open = member_opens, leader_opens  # type: ignore[method-assign,assignment]

    @property
    def slack_ms(self) -> list[float]:
        """Return for each window how long before its first step this rank knew of it."""
        told = [one for one in self.told.values() if one[0] in self.begun]
        return [(self.begun[step] - at_s) * 1e3 for step, at_s in told]

    def found(self) -> dict[str, Any]:
        """Return rank 0's measurements."""
        both = [(self.told[n][0], *self.agreed[n]) for n in self.agreed.keys() & self.told.keys()]
        return {
            "steps": [to - step for to, step, _, _ in both],
            "ms": [(self.begun[to] - at_s) * 1e3 for to, _, at_s, _ in both],
            "took_ms": [took_s * 1e3 for *_, took_s in both],
        }


def _operate(session: Session, windows: int, ended: threading.Event) -> None:
    time.sleep(3.0)
    for number in range(1, windows + 1):
        Path("edit").write_text(json.dumps({"active": 1, "metadata": {"number": number}}))
        Path("edit").replace("prof_config/profiler_config.json")
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            job = session.status().job
            if job and job.request == number and job.pending == 0:
                break
            time.sleep(0.01)
        time.sleep(PAUSE_S)
    ended.set()


def _train(step_ms: float, windows: int) -> None:
    """Train as one rank; rank 0 writes the measurements."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, ended, flag, measured = dist.get_rank(), threading.Event(), torch.zeros(1), Measured()
    dynamic_profile.init("prof_config")
    session = dynamic_profile.running()
    assert session
    if rank == 0:
        threading.Thread(target=_operate, args=(session, windows, ended), daemon=True).start()
    while not flag.item():
        began_s = measured.begun[session.inbox.step] = time.monotonic()
        while time.monotonic() < began_s + step_ms / 2e3:
            pass
        time.sleep(step_ms / 2e3)
        flag.fill_(ended.is_set())
        dist.all_reduce(flag)
        dynamic_profile.step()
    slack: list[Any] = [None] * RANKS
    dist.all_gather_object(slack, measured.slack_ms)
    if rank == 0:
        found = {**measured.found(), "slack_ms": [one for of_rank in slack for one in of_rank]}
        Path("found.json").write_text(json.dumps(found))
    dynamic_profile.shutdown()
    dist.destroy_process_group()


def measure(step_ms: float, windows: int = WINDOWS) -> dict[str, list[float]]:
    """Run a job; return its measurements."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={RANKS}", "-m", "benchmarks.opening"]
        command += [str(step_ms), str(windows)]
        root = Path(__file__).resolve().parent.parent
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
        subprocess.run(command, check=True, cwd=folder, env=env, capture_output=True)
        found: dict[str, list[float]] = json.loads((Path(folder) / "found.json").read_text())
        return found


def main() -> None:
    """Measure, and print a table."""
    rows = []
    for step_ms in STEPS_MS:
        found = measure(step_ms)
        steps, times, slack = found["steps"], found["ms"], found["slack_ms"]
        cells = (
            f"{step_ms} ms",
            f"{len(steps)}",
            f"{statistics.median(found['took_ms']):.0f} ms",
            f"{statistics.median(steps):.0f}",
            f"{statistics.median(times):.0f} ms",
            f"{max(times):.0f} ms",
            f"{min(slack):.0f} ms",
            f"{sum(one < 0 for one in slack)}",
        )
        rows.append(cells)
    head = ("a step", "windows", "replies", "steps", "first step after", "worst", "slack", "late")
    print_table("From the last reply to the first step of a window", head, rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _train(float(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
