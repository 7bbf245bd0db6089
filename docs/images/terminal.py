"""Records ``terminal.svg``: a real session in tmux, beside a real job of four ranks.

``python docs/images/terminal.py`` needs tmux; the picture is what the terminal showed, colours
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
from pathlib import Path

from rich.console import Console
from rich.text import Text

JOB = """
import time, dynprof as dp
dp.init("prof_config")
while True:
    time.sleep(0.02)
    dp.step()
"""
COMMANDS = (
    "dynprof status prof_config",
    "dynprof arm prof_config --active 50 --warmup 1 --ranks 0,3 --wait",
    "dynprof log prof_config -n 3",
)
COLUMNS, ROWS = 132, 32
SESSION = "dynprof-recording"


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


def record(folder: Path) -> str:
    """Play the session in a folder; return what the terminal shows, with its escapes."""
    bin_dir = str(Path(sys.executable).parent)
    size = ("-x", str(COLUMNS), "-y", str(ROWS))
    shell = f"env PS1='$ ' PATH={bin_dir}:{os.environ['PATH']} sh"
    tmux("new-session", "-d", "-s", SESSION, "-c", str(folder), *size, shell)
    try:
        time.sleep(1)
        for command in COMMANDS:
            type_in(command)
        return tmux("capture-pane", "-e", "-p", "-t", SESSION)
    finally:
        tmux("kill-session", "-t", SESSION)


def main() -> None:
    """Run the job, record, write the picture beside this file."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as jobs:
        folder = Path(place)
        (folder / "job.py").write_text(JOB)
        for rank in range(4):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4"}
            job = subprocess.Popen([sys.executable, "job.py"], cwd=folder, env=env)
            jobs.callback(job.wait)
            jobs.callback(job.kill)
        time.sleep(8)
        shown = record(folder).rstrip().removesuffix("$")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(shown.rstrip()), soft_wrap=True)
    svg = console.export_svg(title="four ranks, one operator")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # nothing from elsewhere
    Path(__file__).with_name("terminal.svg").write_text(svg)


if __name__ == "__main__":
    main()
