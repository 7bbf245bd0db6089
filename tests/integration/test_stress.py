"""Many windows in difficult surroundings do not affect the training."""

from __future__ import annotations

import os
import shutil
import textwrap
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from tests import warm_interpreter
from tests.integration.launching import end_well, ranks
from tests.integration.running import DESCENT, below, read_trace, steps_in
from tests.pace import patience_s

torch = pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest

WINDOWS = (
    """
import itertools, json, os, pathlib, sys, threading, time
import torch
import dynprof as dp
torch.manual_seed(0)
torch.set_num_threads(1)
DETAILS = [{}, {"record_shapes": True, "profile_memory": True}, {"with_stack": True}]
details = itertools.cycle(DETAILS)
since_opened = 0
asked = pathlib.Path(f"asked_{os.environ.get('RANK', 0)}.json")
def end_step(most_while_saving=40):
    # As soon as one window is saved, open the next; a busy machine may be slow to save.
    global since_opened
    since_opened += 1
    while since_opened > most_while_saving and dp.status().state == "saving":
        time.sleep(0.01)
    if dp.status().state == "idle":
        since_opened = 0
        asked.write_text(json.dumps({"active": 3, "activities": ["CPU"], **next(details)}))
        dp.start(asked)
    dp.step()
def ready():
    dp.init("prof_config")
    from dynprof.backends.torch.detached_close_selftest import SELF_TEST
    while dp.status().state == "idle" and SELF_TEST.answer is None:
        time.sleep(0.01)
"""
    + DESCENT
    + """
def train(batch, net=model):
    optimizer.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""
)
"""A model, and ``end_step()``, which ends a step and keeps windows open all the time."""

WORKERS = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((32,), index / 64.0)
ready()
for _ in range(3):
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
        train(batch)
        end_step(most_while_saving=16)
"""

COMPILES = shutil.which("g++") and " " not in torch.__file__
"""Whether inductor finds a compiler, and torch's path needs no quotes."""
COMPILED = """
from torch._dynamo.utils import counters
fast = torch.compile(model, backend="BACKEND")
ready()
for size in [16] * 80 + [24] * 80:  # the second size compiles again, in a window
    train(torch.randn(size, 32), fast)
    end_step()
print("compiled", counters["stats"]["unique_graphs"], counters["frames"]["total"])
""".replace("BACKEND", "inductor" if COMPILES else "aot_eager")

RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo")
begin = {name: value.clone() for name, value in model.state_dict().items()}
def epoch(name, after_step):
    sys.stdout = open(f"{name}_{dist.get_rank()}.txt", "w")
    model.load_state_dict(begin)
    together = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(dist.get_rank())
    for number in range(40):
        train(torch.randn(16, 32), together)
        after_step()
    sys.stdout.flush()
epoch("without", lambda: None)
ready()
epoch("with", end_step)
dist.barrier()
dp.shutdown()
dist.destroy_process_group()
"""


def run(folder: Path, script: str, **env: str) -> str:
    """Run a script to its end; return what it printed."""
    folder.mkdir()
    job = folder / "job.py"
    job.write_text(WINDOWS + textwrap.dedent(script))
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    clean = {**clean, "OMP_NUM_THREADS": "1", **env}
    process = warm_interpreter.start(job, clean, unloads=True)
    output, errors = process.communicate(timeout=3 * patience_s())  # compilation is slow
    assert process.returncode == 0, errors
    return output


def whole_captures(folder: Path) -> list[Manifest]:
    """Return the manifests of the windows that closed by themselves; check their traces."""
    found = []
    for path in below(folder, "*.info.json"):
        manifest = load_manifest(path)
        assert manifest.reason in ("", "the process ended", "shutdown() was called")
        steps = manifest.steps
        whole = list(range(steps.first, steps.first + steps.recorded))
        assert steps_in(read_trace(path, manifest))[: steps.recorded] == whole
        if manifest.complete:
            assert manifest.closing == "detached"
            found.append(manifest)
    return found


def test_windows_do_not_change_the_losses(tmp_path: Path) -> None:
    """Losses are bit-identical to those without dynprof, and every trace is whole."""
    expected = run(tmp_path / "off", WORKERS, DYNPROF_DISABLE="1")
    assert run(tmp_path / "on", WORKERS) == expected
    assert len(expected.splitlines()) == 48
    assert len(whole_captures(tmp_path / "on")) >= 3


@pytest.mark.long
@pytest.mark.timeout(400)
def test_compiled_steps(tmp_path: Path) -> None:
    """Windows neither change losses of compiled code nor cause new compilations."""
    expected = run(tmp_path / "off", COMPILED, DYNPROF_DISABLE="1")
    assert expected.splitlines()[-1] == "compiled 2 2"
    assert run(tmp_path / "on", COMPILED) == expected
    assert len(whole_captures(tmp_path / "on")) >= 3


@pytest.mark.timeout(400)
def test_ranks_close_together(tmp_path: Path) -> None:
    """Two processes, joined by gloo in every step, each record their own windows."""
    with ranks(tmp_path, WINDOWS + RANKS, 2) as running:
        end_well(running, patience=3)
    for rank in range(2):
        losses, expected = (
            (tmp_path / f"{name}_{rank}.txt").read_text() for name in ("with", "without")
        )
        assert (losses, len(losses.splitlines())) == (expected, 40)
    captures = whole_captures(tmp_path)
    assert {manifest.rank for manifest in captures} == {0, 1}
    assert {manifest.world_size for manifest in captures} == {2}
