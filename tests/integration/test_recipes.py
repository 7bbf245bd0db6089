"""The recipes of ``docs/recipes.md``, run unchanged on one machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, free_port, launched
from tests.integration.running import RunningJob, wait_for
from tests.processes import DYNPROF, ROOT, start

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from tests.processes import Process

PAGE = (ROOT / "docs" / "recipes.md").read_text()
TRAIN = """
import os, sys, time
if "SLURM_PROCID" in os.environ:
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
import torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
dp.init("prof_config")
flag = torch.zeros(1)
while not flag.item():
    time.sleep(0.005)
    flag.fill_(os.path.exists("../enough"))
    dist.all_reduce(flag)
    dp.step()
dist.destroy_process_group()
"""


def commands(first_word: str) -> list[list[str]]:
    """Return the page's commands that start like this."""
    lines = [line for text in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S)
             for line in text.splitlines()]  # fmt: skip
    return [shlex.split(line) for line in lines if line.startswith(f"{first_word} ")]


@contextlib.contextmanager
def nodes(
    folder: Path, of_each: Mapping[str, dict[str, str]], *torchrun: str, **scripts: str
) -> Iterator[None]:
    """Run a script in a folder for each node, and let all of them end.

    Args:
        folder: The parent of these folders.
        of_each: The variables of each node.
        torchrun: Options of torchrun, if it is used.
        scripts: The scripts of nodes that train something else.
    """
    with contextlib.ExitStack() as stack:
        running: list[Process] = []
        for name, env in of_each.items():
            (folder / name).mkdir(exist_ok=True)
            begun = launched(folder / name, scripts.get(name, TRAIN), *torchrun, more=env)
            running.append(stack.enter_context(begun))
        wait_for("the ranks", lambda: logs(folder).count("agree on the steps") == 2 or None)
        yield
        (folder / "enough").touch()
        end_well(running)


def logs(folder: Path) -> str:
    """Return the logs of all ranks."""
    return "".join(path.read_text() for path in folder.glob("*/prof_config/log/*.log"))


def leads(folder: Path) -> Path:
    """Return True if a log names this rank as the leader, otherwise None."""
    (path,) = (
        p for p in folder.glob("*/prof_config/log/*.log") if "this one leads" in p.read_text()
    )
    return path.parents[2]


def captures(folder: Path) -> list[Manifest]:
    """Return the manifests of all captures, by rank."""
    paths = folder.glob("*/prof_config/step_*/info/rank_*.info.json")
    return sorted(map(load_manifest, paths), key=lambda manifest: manifest.rank)


def arms_both(folder: Path, command: list[str], count: int = 2) -> None:
    """Run the page's ``dynprof arm`` in rank 0's directory; all ranks record the same steps."""
    assert command[:2] == ["dynprof", "arm"]
    code, _, errors = dynprof(*command[1:2], leads(folder) / command[2], *command[3:])
    assert code == 0, errors
    assert f"{count} of {count} ranks saved it" in errors
    found = captures(folder)
    assert [manifest.rank for manifest in found] == list(range(count))
    assert len({(one.steps.first, one.steps.last) for one in found}) == 1


def test_torchrun_on_two_nodes_that_share_no_disk(tmp_path: Path) -> None:
    """Two agents work, each in its own folder; the pods of the Job do the same."""
    (torchrun,) = commands("torchrun")
    (of_pods,) = re.findall(r"command: \[(torchrun,.*?)\]", PAGE, re.S)
    in_pods = [word.strip() for word in of_pods.split(",")]
    assert in_pods == [word.replace("node0", "train-0.train") for word in torchrun]
    words = [word.replace("node0:29400", f"127.0.0.1:{free_port()}") for word in torchrun[1:]]
    words[words.index("--nproc-per-node=8")] = "--nproc-per-node=1"
    options = ["--local-addr=127.0.0.1", *words[:-1]]
    arm = next(words for words in commands("dynprof"))
    with nodes(tmp_path, {"node0": {}, "node1": {}}, *options):
        arms_both(tmp_path, arm)


def test_tasks_of_slurm(tmp_path: Path) -> None:
    """Tasks with the variables that ``srun`` sets work, each in its own folder."""
    train, enter = commands("srun")
    assert train[train.index("python") + 1 :] == ["train.py"]
    job = {"SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    tasks = {f"task{rank}": {**job, "SLURM_PROCID": str(rank)} for rank in range(2)}
    with nodes(tmp_path, tasks):
        arms_both(tmp_path, enter[enter.index("dynprof") :])


SRUN = """#!/bin/bash
for rank in 0 1; do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 "$@" &
done
wait
"""
"""Starts the tasks of one node as ``srun`` does."""
SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames node[1-2]" ] && echo 127.0.0.1 && echo node2
"""


def test_job_script_of_slurm(tmp_path: Path) -> None:
    """It starts ranks that dynprof watches, though their script does not call ``dp.init()``."""
    tools, work = tmp_path / "tools", tmp_path / "work"
    for folder in (tools, work):
        folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tools / "dynprof").write_text(f'#!/bin/bash\nexec {shlex.join(DYNPROF)} "$@"\n')
    (tools / "dynprof").chmod(0o755)
    (work / "train.py").write_text(TRAIN.replace('dp.init("prof_config")\n', ""))
    port = next(port for port in iter(free_port, None) if 20_000 <= port < 30_000)
    env = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_ID": str(port - 20_000),
        "DYNPROF_CONFIG": str(work / "prof_config"),
    }
    script = ROOT / "examples" / "slurm" / "train.sbatch"
    with start(["bash", str(script), "train.py"], cwd=work, env=env) as job:
        wait_for("the ranks", lambda: logs(tmp_path).count("agree on the steps") == 2 or None)
        arms_both(tmp_path, next(words for words in commands("dynprof")))
        (tmp_path / "enough").touch()
        _, errors = job.communicate()
        assert job.returncode == 0, errors


class ConfigMap:
    """A mounted ConfigMap. Like the kubelet, it replaces a link's target atomically.

    Args:
        folder: The mount point.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.brings("..2026_01", '{"active": 1}')
        (folder / "profiler_config.json").symlink_to("..data/profiler_config.json")
        folder.chmod(0o777)  # the mode of such a volume

    def brings(self, name: str, content: str) -> None:
        """Publish new content."""
        (self._folder / name).mkdir(parents=True)
        (self._folder / name).chmod(0o755)
        (self._folder / name / "profiler_config.json").write_text(content)
        (self._folder / "..new").symlink_to(name)
        (self._folder / "..new").replace(self._folder / "..data")

    def watched_in(self, script: str) -> str:
        """Return a script with the page's first lines instead of its own."""
        (begin,) = re.findall(r"<!-- job: config map -->\n```python\n(.*?)```", PAGE, re.S)
        begin = begin.replace("/etc/prof", str(self._folder))
        return script.replace('dp.init("prof_config")\n', begin)


def test_a_config_map_that_rank_0_mounts(tmp_path: Path) -> None:
    """All ranks record the content that it brings; the other rank has no such mount."""
    mounted = ConfigMap(tmp_path / "mounted")
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    pods = {f"pod{rank}": {**job, "RANK": str(rank)} for rank in range(2)}
    with nodes(tmp_path, pods, pod0=mounted.watched_in(TRAIN)):
        assert leads(tmp_path).name == "pod0"
        mounted.brings("..2026_02", '{"active": 2}')
        wait_for("both captures", lambda: logs(tmp_path).count("request 1: saved ") == 2 or None)
    found = captures(tmp_path)
    assert [manifest.rank for manifest in found] == [0, 1]
    assert all(one.complete and one.steps.recorded == 2 for one in found)
    assert len({one.steps.first for one in found}) == 1


MARCH = """
import itertools, time, dynprof as dp
dp.init("prof_config")
for number in itertools.count(1):
    time.sleep(max(0.0, {began_s} + {step_s} * number - time.time()))
    dp.step()
"""
"""Step n ends at the same time on all ranks; a rank that starts late catches up."""


def test_ranks_that_share_a_directory_alone(tmp_path: Path) -> None:
    """Without a process group, ranks with the same pace open windows at a multiple of N."""
    began_s, step_s, multiple = time.time(), 0.005, 1000
    script = MARCH.format(began_s=began_s, step_s=step_s)
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(RunningJob(tmp_path, script, RANK=str(rank), WORLD_SIZE="2"))
            for rank in range(2)
        ]
        for rank, job in enumerate(jobs):
            job.when("training", lambda status: status.state == "idle", rank)
        # Not just before such a step: a rank could learn of it too late.
        soon = lambda: (time.time() - began_s) / step_s % multiple < multiple / 4 or None  # noqa: E731
        wait_for("the next multiple to be far", soon)
        jobs[0].edit(active=2, start_step=f"next multiple of {multiple}")
        found = [job.capture()[0] for job in jobs]
    assert [manifest.rank for manifest in found] == [0, 1]
    assert found[0].steps.first == found[1].steps.first
    assert found[0].steps.last == found[1].steps.last
    assert ((found[0].steps.first or 0) - found[0].steps.warmup) % multiple == 0


@pytest.mark.parametrize("name", ["torchrun", "srun", "kubectl", "dynprof"])
def test_each_kind_of_command_is_on_the_page(name: str) -> None:
    """Commands that no test can run have the same dynprof options as one that a test runs."""
    found = commands(name)
    assert found
    for words in found:
        if "arm" in words:
            assert words[words.index("arm") :][-3:] == ["--active", "3", "--wait"]
