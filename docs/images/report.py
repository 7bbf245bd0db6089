"""Makes ``report.png`` from a capture of a real job.

``python docs/images/report.py`` needs Chromium. The job's data loader is slow on purpose.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

JOB = """
import torch
from dynprof.profiler import profile, schedule, tensorboard_trace_handler

class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 64 * 16

    def __getitem__(self, index):
        words = sorted(torch.randn(400).tolist())  # tokenizing, as it were
        return torch.tensor(words[:64]).reshape(16, 4).repeat(1, 16)

layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
optimizer = torch.optim.Adam(model.parameters())
steps = schedule(wait=0, warmup=2, active=8, repeat=1)
with profile(schedule=steps, on_trace_ready=tensorboard_trace_handler("log", analyse_flag=False),
             record_shapes=True, profile_memory=True, with_stack=True) as prof:
    for number, batch in enumerate(torch.utils.data.DataLoader(Sentences(), 64)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        prof.step()
        if number == 10:
            break
"""
HERE = Path(__file__).parent


def main() -> None:
    """Record, report, and take the pictures without the network."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", JOB], cwd=folder, check=True)
        command = [sys.executable, "-c", "from dynprof.cli.app import app; app()", "report", "log"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        page = Path(folder, done.stdout.splitlines()[-1]).absolute().as_uri()
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or "google-chrome"
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            size = {"width": 1100, "height": 1240}
            opened = browser.new_context(offline=True, viewport=size).new_page()
            opened.goto(page)
            opened.screenshot(path=HERE / "report.png")
            browser.close()


if __name__ == "__main__":
    main()
