"""Records ``terminal.svg`` and ``attach.svg``: real sessions in tmux, next to real jobs.

``python docs/images/terminal.py [NAME]`` needs tmux; a picture is what the terminal showed, colours
included.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

SESSION = "dynprof-recording"
STORE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@dataclass(frozen=True)
class Session:
    """What is shown.

    Attributes:
        title: Above the picture.
        job: A script, which runs as ``train.py``.
        ranks: How many of it run.
        commands: What is typed, one after the other.
        rows: Of the terminal.
        columns: Of the terminal.
    """

    title: str
    job: str
    ranks: int
    commands: tuple[str, ...]
    rows: int
    columns: int = 132


SESSIONS = {
    "terminal": Session(
        title="four ranks, one operator",
        job="""
import time, torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
dp.init("prof_config")
gradient = torch.zeros(1000)
while True:
    time.sleep(0.02)
    dist.all_reduce(gradient)
    dp.step()
""",
        ranks=4,
        commands=(
            "dynprof status prof_config",
            "dynprof arm prof_config --active 50 --warmup 1 --ranks 0,3 --wait",
            "dynprof log prof_config -n 3",
        ),
        rows=32,
    ),
    "attach": Session(
        title="a job that nobody prepared",
        job="""
import time, torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.randn(64_000, 512), batch_size=64)
while True:
    for batch in data:
        time.sleep(0.02)  # a slow disk
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        ranks=1,
        commands=(
            "dynprof attach $(pgrep -of train.py)",
            "dynprof status",
            "dynprof arm $(pgrep -of train.py) --active 10 --wait",
            "dynprof top prof_config --limit 8",
            "dynprof detach $(pgrep -of train.py)",
        ),
        rows=40,
    ),
}


def tmux(*arguments: str) -> str:
    """Run a command of tmux."""
    done = subprocess.run(["tmux", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def type_in(command: str) -> None:
    """Type a command, and wait until the prompt is back."""
    tmux("send-keys", "-t", SESSION, command, "Enter")
    time.sleep(1)
    while not tmux("capture-pane", "-p", "-t", SESSION).rstrip().endswith("$"):
        time.sleep(0.2)


def record(session: Session, folder: Path) -> str:
    """Play a session in a folder; return what the terminal shows, with its escapes."""
    size = ("-x", str(session.columns), "-y", str(session.rows))
    shell = f"env PS1='$ ' PATH={PATH} sh"
    tmux("new-session", "-d", "-s", SESSION, "-c", str(folder), *size, shell)
    try:
        time.sleep(1)
        for command in session.commands:
            type_in(command)
        return tmux("capture-pane", "-e", "-p", "-t", SESSION)
    finally:
        tmux("kill-session", "-t", SESSION)


def main() -> None:
    """Record what is named, or all; write the pictures next to this file."""
    for name in sys.argv[1:] or SESSIONS:
        Path(__file__).with_name(f"{name}.svg").write_text(picture(SESSIONS[name]))


def picture(session: Session) -> str:
    """Run the job, and return what the terminal shows at the same time."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as jobs:
        folder = Path(place)
        (folder / "train.py").write_text(session.job)
        for rank in range(session.ranks):
            several = {"RANK": str(rank), "WORLD_SIZE": str(session.ranks), **STORE}
            env = {**os.environ, "PATH": PATH, **(several if session.ranks > 1 else {})}
            job = subprocess.Popen(["python", "train.py"], cwd=folder, env=env)
            jobs.callback(job.wait)
            jobs.callback(job.kill)
        time.sleep(20)
        shown = record(session, folder).rstrip().removesuffix("$")
    console = Console(record=True, width=session.columns, file=io.StringIO())
    console.print(Text.from_ansi(shown.rstrip()), soft_wrap=True)
    svg = console.export_svg(title=session.title)
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # nothing from elsewhere


if __name__ == "__main__":
    main()
