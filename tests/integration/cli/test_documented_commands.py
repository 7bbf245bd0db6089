"""The commands in the documentation run against real jobs, and print what the pages show."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynprof.cli.history import BARS, NO_STEP
from tests.integration.launch.reaching import needs_reaching
from tests.integration.launching import launched, when
from tests.integration.running import LOOP, TORCH_JOB, RunningJob
from tests.integration.scripts import ONE_RANK_HANGS
from tests.processes import DYNPROF, ROOT, run, start

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = {page.name: page.read_text() for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
TORCH_LOOP = (
    TORCH_JOB
    + """
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
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
SLOWED_LOOP = """
import time, dynprof as dp
dp.init("prof_config")
for step in range(10**9):
    time.sleep(0.022 if step < 900 else 0.07)
    dp.step()
"""
RANKS = {"four ranks": (4, LOOP), "slowed": (2, SLOWED_LOOP)}
"""The number of ranks of a job, and their script."""
UNPREPARED = """
import time

def work():
    time.sleep(0.005)

while True:
    work()
"""


@dataclass(frozen=True)
class Block:
    """A block of commands, and the job for which it is written."""

    title: str
    job: str
    text: str


def blocks() -> list[Block]:
    """Return the blocks of the pages."""
    found = []
    for section in [part for page in PAGES.values() for part in page.split("\n## ")]:
        title = section.splitlines()[0].lstrip("# ")
        for job, text in re.findall(r"<!-- job: ([\w ]+) -->\n```console\n(.*?)```", section, re.S):
            found.append(Block(title, job, text))
    return found


def from_page(name: str, kind: str) -> str:
    """Return the only example of a kind on a page."""
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGES[name], re.M | re.S)
    return str(text)


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[None]:
    """Run the job for which a block is written."""
    ready = contextlib.ExitStack()
    size, loop = RANKS.get(kind, (1, LOOP))
    if kind in RANKS:
        for rank in range(size):
            ready.enter_context(RunningJob(folder, loop, RANK=str(rank), WORLD_SIZE=str(size)))
    elif kind in ("torchrun", "hanging"):
        example = (ROOT / "examples" / "torchrun" / "train.py").read_text()
        endless = example.replace('"5000"', '"1000000"')
        count, script = (2, endless) if kind == "torchrun" else (4, ONE_RANK_HANGS)
        ready.enter_context(launched(folder, script, "--standalone", f"--nproc-per-node={count}"))
    elif kind in ("unprepared", "unknown"):
        if kind == "unknown":
            needs_reaching()
        (folder / "job.py").write_text(UNPREPARED)
        run_it = (
            [*DYNPROF, "run", "--step-on", ":work"] if kind == "unprepared" else [sys.executable]
        )
        process = ready.enter_context(start([*run_it, "job.py"], cwd=folder))
        (folder / "pid").write_text(str(process.pid))
    elif kind != "none":
        job = ready.enter_context(RunningJob(folder, LOOP if kind == "plain" else TORCH_LOOP))
    ranks = {"none": 0, "unknown": 0, "hanging": 4, "torchrun": 2}.get(kind, size)
    is_ready = attrgetter("pace_change" if kind == "slowed" else "step_ms")
    with ready:
        when(
            folder,
            "the ranks and their pace",
            lambda now: (
                len(now) == ranks
                and all(is_ready(s) and (kind != "hanging" or s.step == 40) for s in now.values())
            ),
        )
        if kind == "edited":
            job.config.write_text(from_page("README.md", "json"))
            job.capture()
        yield


def plain(text: str) -> list[str]:
    """Return lines without parts that depend on machine and time."""
    text = text.replace(os.uname().nodename, "host")
    text = re.sub(r"/\S*/(?=(prof_config|job\.py)\b)", "", text)
    text = re.sub(r'(?<=training_job=")[^"/]+/', "", text)
    text = re.sub(f"[{BARS}{NO_STEP}]+", NO_STEP, text).replace("minutes", "minute")
    text = re.sub(r"\d[\d.,:]*", "0", text).replace("0 to 0 MB", "0 MB")  # if all have the same
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in lines if line and "\u2501" not in line]  # no progress bars


def shell(folder: Path, command: str) -> str:
    """Run a command unchanged in a folder; return the terminal's output."""
    env = {**os.environ, "COLUMNS": "250"}
    name, *arguments = shlex.split(command)
    if name == "dynprof" and not set(command) & set("$|<>;&*"):  # it needs no shell
        shown = run([*DYNPROF, *arguments], cwd=folder, env=env, stderr=subprocess.STDOUT)
        return shown.stdout
    tool = folder / "bin" / "dynprof"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!{sys.executable}\nfrom dynprof.cli.app import app\napp()\n")
    tool.chmod(0o755)
    path = f"{tool.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env["PATH"] = path
    return run(["sh", "-c", command], cwd=folder, env=env, stderr=subprocess.STDOUT).stdout


@pytest.mark.timeout(400)  # a change of the pace is known after a minute
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block, id=f"{n} {block.title}", marks=[pytest.mark.long] * (block.job == "slowed")
        )
        for n, block in enumerate(blocks())
    ],
)
def test_documented_commands_print_the_documented_output(tmp_path: Path, block: Block) -> None:
    """Each command of a block runs in order; numbers, times and host names may differ."""
    if block.job in ("torch", "torchrun", "hanging", "edited"):
        pytest.importorskip("torch", reason="torch is not installed")
    shown: list[str] = []
    with running(block.job, tmp_path):
        for command in re.findall(r"^\$ (.*)$", block.text, re.M):
            shown += [f"$ {command}", shell(tmp_path, command)]
    assert plain("\n".join(shown)) == plain(block.text)


def tree() -> list[str]:
    """Return the paths on the captures page as patterns; descriptions contain spaces."""
    above: list[tuple[int, str]] = []
    paths = []
    for line in from_page("captures.md", "").splitlines():
        indent = len(line) - len(line.lstrip())
        above = [folder for folder in above if folder[0] < indent]
        for shown in [word for word in re.split(r" {2,}", line.strip()) if " " not in word]:
            name = re.sub(r"<\w+>", "*", shown)
            paths.append("".join([folder for _, folder in above]) + name)
            if name.endswith("/"):
                above.append((indent, name))
    return paths


def test_the_files_shown_and_the_query_are_those_of_a_capture(tmp_path: Path) -> None:
    """Exactly the files of the tree exist, and the query runs on them."""
    pytest.importorskip("torch", reason="torch is not installed")
    with running("torch", tmp_path):
        shell(tmp_path, "dynprof arm prof_config --active 2 --metadata run=1 --wait")
        made = {path for path in (tmp_path / "prof_config").rglob("[!.]*") if path.is_file()}
    assert {path for name in tree() for path in tmp_path.glob(name)} >= made
    assert all(list(tmp_path.glob(name)) for name in tree())
    shell(tmp_path, "dynprof analyse prof_config")
    (tmp_path / "top.sql").write_text(from_page("analysis.md", "sql"))
    (command,) = re.findall(r"`(python -c [^`]*)`", PAGES["analysis.md"])
    assert "aten::addmm" in shell(tmp_path, command)


def test_every_block_has_its_job() -> None:
    """No block is skipped because its job is missing or misspelt."""
    assert sum(page.count("```console") for page in PAGES.values()) == len(blocks()) > 10
    kinds = {"plain", "torch", "edited", "four ranks", "none", "torchrun", "unknown", "unprepared"}
    kinds |= {"hanging", "slowed"}
    assert {block.job for block in blocks()} == kinds
