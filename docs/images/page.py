"""Makes ``page.png`` from the files of twelve jobs, as their ranks would write them.

``python docs/images/page.py`` needs Chromium. Three of the jobs have trouble.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from dynprof.journal.pace_changes import PaceChange, RecentPace
from dynprof.journal.status import Status

HERE = Path(__file__).parent
JOBS = {
    "llama-70b/pretrain": (64, 812.0), "llama-70b/sft": (16, 230.0), "vision/vit-l": (8, 61.5),
    "vision/detr": (8, 88.0), "speech/whisper": (4, 140.0), "rl/ppo": (32, 420.0),
    "rl/grpo": (16, 350.0), "embed/e5": (2, 22.0), "moe/mixtral": (128, 1130.0),
    "video/dit": (16, 640.0), "ablation/lr-3e4": (1, 15.2), "ablation/lr-1e4": (1, 15.4),
}  # fmt: skip
"""The ranks of each job, and the time of its steps in milliseconds."""


def main() -> None:
    """Write the files, serve them, and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(JOBS):
            write(Path(folder, name), name, number)
        code = "from dynprof.cli.app import app; app()"
        command = [sys.executable, "-u", "-c", code, "serve", folder, "--listen", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                take_picture(server.stdout.readline().strip() if server.stdout else "")
            finally:
                server.kill()


def take_picture(address: str) -> None:
    """Open the list of jobs and save what it shows."""
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or "google-chrome"
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 720})
        page.goto(address)
        page.locator("#jobs tbody tr").nth(len(JOBS) - 1).wait_for()
        page.screenshot(path=HERE / "page.png")
        browser.close()


def write(directory: Path, name: str, number: int) -> None:
    """Write the status of each rank of a job."""
    folder = directory / "status"
    folder.mkdir(parents=True)
    ranks, ms = JOBS[name]
    for rank in range(ranks):
        now_s = time.time()
        means = [round(ms * (1 + 0.03 * math.sin(part + number)), 3) for part in range(24)]
        facts: dict[str, Any] = {"heartbeat": now_s, "longest_s": 3.0, "step_ms": ms}
        if name == "vision/detr":
            means[17:] = [2.1 * mean for mean in means[17:]]
            facts |= {"step_ms": 185.1, "pace_change": PaceChange(now_s - 1000, 41200, ms, 185.1)}
        if name == "moe/mixtral" and rank == 77:
            facts |= {"since_last_step_s": 241.0, "stuck_at": "all_to_all (experts.py:212)"}
        if name == "rl/ppo" and rank in (8, 9, 10, 11):
            facts["heartbeat"] = now_s - 400
        status = Status(
            "recording" if name == "embed/e5" else "idle", 52000 + 731 * number, rank=rank,
            host=f"gpu-{number:02}{rank // 8:02}", pid=4000 + rank, world_size=ranks,
            recent_pace=RecentPace(now_s - 3600, now_s, tuple(means)), **facts,
        )  # fmt: skip
        text = json.dumps(dataclasses.asdict(status))
        (folder / f"rank_{rank}.json").write_text(text)


if __name__ == "__main__":
    main()
