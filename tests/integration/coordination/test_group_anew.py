"""A job leaves its process group and makes another; its ranks meet, and agree, as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, ranks
from tests.integration.running import wait_for

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import os, socket, time
import torch, torch.distributed as dist, dynprof as dp
from dynprof.coordination import leader
leader.NUMBERS_S = 30.0
flag = torch.zeros(1)
dp.init("prof_config")
for round in range(3):
    dist.init_process_group("gloo")
    while True:
        time.sleep(0.002)
        flag.fill_(os.path.exists(f"enough_{round}"))
        dist.all_reduce(flag)
        dp.step()
        if flag.item():
            break
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        with socket.socket() as probe:
            store = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            assert probe.connect_ex(store) != 0, "the store outlives its group"
        open(f"left_{round}", "w").close()
    while not os.path.exists(f"left_{round}"):  # else the other finds the store of this group
        time.sleep(0.001)
"""


def test_a_process_group_that_is_made_anew(tmp_path: Path) -> None:
    """Its store is not that of the group before, whose addresses nobody answers at any more."""
    root = tmp_path / "prof_config"

    def meet(times: int) -> None:
        wait_for("the ranks", lambda: said() == 2 * times or None)

    def said() -> int:
        logs = "".join(path.read_text() for path in root.glob("log/*.log"))
        return logs.count("agree on the steps")

    with ranks(tmp_path, JOB, 2) as running:
        for number in range(3):
            meet(number + 1)
            code, _, errors = dynprof("arm", root, "--active", 2, "--wait")
            assert code == 0, errors
            assert "2 of 2 ranks saved it: " in errors
            (tmp_path / f"enough_{number}").touch()
        assert "Traceback" not in end_well(running)
    found = [load_manifest(path) for path in root.rglob("rank_*.info.json")]
    assert len(found) == 6
    assert len({(one.steps.first, one.steps.last) for one in found}) == 3
