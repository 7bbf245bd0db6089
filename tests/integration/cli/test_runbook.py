"""The commands of docs/runbook.md, run as they stand against real jobs; they print what it says."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.integration.launching import launched, when
from tests.integration.running import LOOP, TORCH_JOB, RunningJob
from tests.processes import ROOT, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = (ROOT / "docs" / "runbook.md").read_text()
TORCH_LOOP = (
    TORCH_JOB
    + """
from dynprof.backends.selftest import SELF_TEST
SELF_TEST.begin()
while SELF_TEST.answer is None:
    time.sleep(0.01)
dp.init("prof_config")
while True:
    train_one_step()
    time.sleep(0.01)
    dp.step()
"""
)


@dataclass(frozen=True)
class Block:
    """A block of commands, and the job that they are meant for."""

    title: str
    job: str
    text: str


def blocks() -> list[Block]:
    """Return the blocks of the page."""
    found = []
    for section in PAGE.split("\n## "):
        title = section.splitlines()[0].lstrip("# ")
        for job, text in re.findall(r"<!-- job: ([\w ]+) -->\n```console\n(.*?)```", section, re.S):
            found.append(Block(title, job, text))
    return found


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[None]:
    """Run the job that a block is meant for."""
    ready = contextlib.ExitStack()
    if kind == "four ranks":
        for rank in range(4):
            ready.enter_context(RunningJob(folder, LOOP, RANK=str(rank), WORLD_SIZE="4"))
    elif kind == "torchrun":
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        script = (ROOT / "examples" / "torchrun" / "train.py").read_text()
        ready.enter_context(launched(folder, script.replace('"5000"', '"1000000"'), *torchrun))
    elif kind != "none":
        ready.enter_context(RunningJob(folder, TORCH_LOOP if kind == "torch" else LOOP))
    ranks = {"none": 0, "four ranks": 4, "torchrun": 2}.get(kind, 1)
    with ready:
        when(
            folder,
            "the ranks and their pace",
            lambda now: len(now) == ranks and all(s.step_ms for s in now.values()),
        )
        yield


def plain(text: str) -> list[str]:
    """Return lines as far as they are the same on every machine and at every time."""
    text = text.replace(os.uname().nodename, "host")
    lines = [" ".join(line.split()) for line in re.sub(r"\d[\d.,:]*", "0", text).splitlines()]
    return [line for line in lines if line and "\u2501" not in line]  # no progress bars


@pytest.mark.parametrize(
    "block", blocks(), ids=[f"{n} {block.title}" for n, block in enumerate(blocks())]
)
def test_the_commands_print_what_the_page_says(tmp_path: Path, block: Block) -> None:
    """Each command of a block, in order; numbers, times and host names are free."""
    if "torch" in block.job:
        pytest.importorskip("torch", reason="torch is not installed")
    tool = tmp_path / "bin" / "dynprof"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\nfrom dynprof.cli import app\napp()\n")
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}", "COLUMNS": "250"}
    shown: list[str] = []
    with running(block.job, tmp_path):
        for command in re.findall(r"^\$ (.*)$", block.text, re.M):
            done = run(["sh", "-c", command], cwd=tmp_path, env=env, stderr=subprocess.STDOUT)
            shown += [f"$ {command}", done.stdout]
    assert plain("\n".join(shown)) == plain(block.text)


def test_every_situation_has_its_commands() -> None:
    """No block is left out because its job is missing or misspelt."""
    assert PAGE.count("```console") == len(blocks()) > 10
    assert {block.job for block in blocks()} == {"plain", "torch", "four ranks", "none", "torchrun"}
