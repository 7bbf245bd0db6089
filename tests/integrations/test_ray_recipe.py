"""The Ray Train recipe in ``docs/recipes.md``, with real workers and an operator."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.commands import dynprof
from tests.integration.launching import end_well
from tests.integration.running import wait_for
from tests.processes import ROOT, start

pytest.importorskip("ray", reason="ray is not installed; make integrations has it")

if TYPE_CHECKING:
    from pathlib import Path

BEGINNING = """
import os, tempfile, time
import torch, torch.distributed as dist
import ray

root = os.getcwd()

def batches():
    flag = torch.zeros(1)
    while not flag.item():
        yield torch.randn(2, 8)
        flag.fill_(os.path.exists(f"{root}/enough"))
        dist.all_reduce(flag)

def train(batch):
    time.sleep(0.005)
    torch.nn.functional.normalize(batch)

place = tempfile.TemporaryDirectory(prefix="ray")  # paths of its sockets must be short
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, _temp_dir=place.name)
"""
OWN_DIRECTORY = 'f"{root}/node_{ray.train.get_context().get_world_rank()}"'


def recipe() -> tuple[str, list[str]]:
    """Return the page's script, and the arguments of its command."""
    page = (ROOT / "docs" / "recipes.md").read_text()
    found = re.search(
        r"<!-- job: ray -->\n```python\n(.*?)```.*?```bash\ndynprof (.*?)\n```", page, re.S
    )
    assert found
    return found[1], found[2].split()


@pytest.mark.timeout(240)
def test_an_operator_arms_all_workers(tmp_path: Path) -> None:
    """Each worker has its own directory. A save in rank 0's makes both workers record."""
    script, (command, directory, *settings) = recipe()
    path = tmp_path / "job.py"
    path.write_text(
        BEGINNING + script.replace(f'"{directory}"', OWN_DIRECTORY) + "ray.shutdown()\n"
    )
    env = {**os.environ, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    with start([sys.executable, str(path)], cwd=tmp_path, env=env) as running:
        wait_for("rank 0", lambda: "this one leads" in _log(tmp_path / "node_0") or None)
        wait_for("rank 1", lambda: "follows rank 0" in _log(tmp_path / "node_1") or None)
        code, _, errors = dynprof(command, tmp_path / "node_0", *settings)
        assert code == 0, errors
        assert "2 of 2 ranks saved it: " in errors
        (tmp_path / "enough").touch()
        end_well([running], patience=2)
    found = [load_manifest(path) for path in tmp_path.glob("node_*/step_*/info/rank_*.info.json")]
    assert sorted(manifest.rank for manifest in found) == [0, 1]
    assert all(manifest.complete for manifest in found)
    assert len({(one.steps.first, one.steps.last) for one in found}) == 1


def _log(root: Path) -> str:
    return "".join(path.read_text() for path in root.glob("log/*.log"))
