"""Jobs of several processes: late rank numbers, shared directories, workers, restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.commands import dynprof
from tests.integration.launching import launched, statuses, when
from tests.integration.ranks.agreeing import manifests
from tests.integration.running import LOOP, RunningJob

if TYPE_CHECKING:
    from pathlib import Path


LATE = """
import os, sys, time
import torch, dynprof as dp

def train(rank, size):
    dp.init("prof_config")
    while dp.status().step < 20:
        time.sleep(0.01)
        dp.step()
    store = torch.distributed.FileStore("store", size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    while not os.path.exists("enough"):
        time.sleep(0.01)
        dp.step()
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(train, args=(2,), nprocs=2, start_method="fork")
"""

WORKERS = """
import os, torch, dynprof as dp
dp.init("prof_config")

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        dp.init("prof_config")
        dp.step()
        return torch.tensor(index)

if __name__ == "__main__":
    dp.start()
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=1, multiprocessing_context="{way}"
    )
    for batch in loader:
        dp.step()
"""


def logs(folder: Path) -> dict[str, str]:
    """Return the logs by file name."""
    return {path.name: path.read_text() for path in (folder / "prof_config/log").iterdir()}


def test_a_process_group_that_comes_up_late(tmp_path: Path) -> None:
    """With init() before init_process_group(), ranks get their names when they are known.

    Until then both are rank 0, and each warns of the other.
    """
    pytest.importorskip("torch", reason="torch is not installed")
    with launched(tmp_path, LATE) as process:
        there = {"rank_0.json": (0, 2), "rank_1.json": (1, 2)}
        when(
            tmp_path,
            "both ranks",
            lambda now: {name: (s.rank, s.world_size) for name, s in now.items()} == there,
        )
        code, output, errors = dynprof(
            "arm", tmp_path / "prof_config", "--active", 2, "--ranks", 1, "--wait"
        )
        assert code == 0, errors
        assert load_manifest(tmp_path / output.strip()).rank == 1
        (tmp_path / "enough").touch()
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    names = sorted(logs(tmp_path))
    assert [name[-10:] for name in names if name.endswith("_1.log")] == ["rank_1.log"]
    text = "\n".join(logs(tmp_path).values())
    assert "this is rank 1 of 2 (torch.distributed); it was not known before" in text
    assert "rank 0 is not selected, only 1" in text


def test_two_jobs_in_one_directory(tmp_path: Path) -> None:
    """Both continue and capture, and neither overwrites the other; log and status warn."""
    with RunningJob(tmp_path, LOOP) as first, RunningJob(tmp_path, LOOP) as second:
        pids = {first.process.pid, second.process.pid}
        found = when(tmp_path, "both", lambda now: {s.pid for s in now.values()} == pids)
        assert "rank_0.json" in found
        code, output, _ = dynprof("status", first.root)
        assert code == 0
        assert "2 processes report as rank 0: two jobs share the directory" in output
        code, output, _ = dynprof("arm", first.root, "--active", 2, "--wait")
        assert code == 0
        captured = {load_manifest(type(tmp_path)(line)).pid for line in output.splitlines()}
        assert captured == pids
        assert "is rank 0 in this directory too: two jobs share it" in first.log() + second.log()
        first.process.kill()
        first.process.wait()
        own = second.process.pid
        when(tmp_path, "its own name", lambda now: now["rank_0.json"].pid == own)
    assert len(manifests(tmp_path)) == 2
    with RunningJob(tmp_path, LOOP) as third:
        when(
            tmp_path, "one status", lambda now: {s.pid for s in now.values()} == {third.process.pid}
        )


def test_a_job_restarted_at_once_is_not_a_second_job(tmp_path: Path) -> None:
    """The fresh status of a killed process does not look like another job."""
    with RunningJob(tmp_path, LOOP) as killed:
        killed.when("a status", lambda status: status.state == "idle")
        killed.process.kill()
        killed.process.wait()
    with RunningJob(tmp_path, LOOP) as again:
        again.when("a status", lambda status: status.state == "idle")
        assert "in this directory too" not in again.log()


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_neither_watch_nor_write(tmp_path: Path, way: str) -> None:
    """Only one process profiles, although every worker imports the script and calls dynprof."""
    pytest.importorskip("torch", reason="torch is not installed")
    with launched(tmp_path, WORKERS.replace("{way}", way)) as process:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert [name.endswith(f"_{process.pid}_rank_0.log") for name in logs(tmp_path)] == [True]
    assert [status.pid for status in statuses(tmp_path).values()] == [process.pid]
    (manifest,) = manifests(tmp_path)
    assert (manifest.pid, manifest.complete) == (process.pid, True)
