"""A job leaves its process group and makes another one; its ranks agree as before."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.errors import CaptureError
from dynprof.journal.status import load_status
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, free_port, ranks
from tests.integration.running import below, wait_for

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import os, socket, time
import torch, torch.distributed as dist, dynprof as dp


flag = torch.zeros(1)
dp.init("prof_config")
first = int(os.environ["RANK"])
for round in range(3):
    os.environ["RANK"] = str((first + round) % 2)
    dist.init_process_group("gloo")
    while True:
        time.sleep(0.01)
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


def test_ranks_agree_in_a_new_process_group(tmp_path: Path) -> None:
    """The new store is not that of the previous group, whose addresses no longer answer.

    Each rank uses its number in the newest group.
    """
    root = tmp_path / "prof_config"

    def meet(times: int) -> None:
        wait_for("the ranks", lambda: said() == 2 * times or None)
        wait_for(
            "their numbers", lambda: parts() == {"rank_0": "leads", "rank_1": "follows"} or None
        )

    def parts() -> dict[str, str]:
        found = {}
        for path in root.glob("status/*.json"):
            with contextlib.suppress(CaptureError):  # it is being renamed
                found[path.stem] = load_status(path).agreement.partition(" ")[0]
        return found

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
    found = [load_manifest(path) for path in below(root, "rank_*.info.json")]
    assert sorted(one.rank for one in found) == [0] * 3 + [1] * 3
    assert len({(one.steps.first, one.steps.last) for one in found}) == 3


BY_NAME = """
import os, sys, time
import torch.distributed as dist, dynprof as dp
from torch.distributed import destroy_process_group
dist.init_process_group("gloo")
rank = dist.get_rank()
dp.init(f"desk_{rank}")
while not dp.status().agreement.startswith("leads" if rank == 0 else "follows"):
    time.sleep(0.01)
    dp.step()
dist.barrier()
time.sleep(0.6 * (rank == {last}))
destroy_process_group()
{end}
"""


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1), ("raise KeyboardInterrupt", -2)],
)
def test_a_job_that_destroys_its_group_by_an_imported_name_ends_as_usual(
    tmp_path: Path, last: int, end: str, code: int
) -> None:
    """No thread is in the store as Python ends, whichever rank ends first; torch prints nothing."""
    script = BY_NAME.replace("{last}", str(last)).replace("{end}", end)
    with ranks(tmp_path, script, 2) as running:
        errors = [process.communicate()[1] for process in running]
        assert {process.returncode for process in running} == {code}
    assert "TCPStore" not in "".join(errors)


@pytest.mark.parametrize(
    ("end", "code"), [("raise ValueError", 1), ("raise KeyboardInterrupt", -2)]
)
def test_a_job_that_ends_without_destroying_its_group_ends_as_usual(
    tmp_path: Path, end: str, code: int
) -> None:
    """A thread that is still in the store would abort the process with another exit code."""
    script = BY_NAME.replace("{last}", "1").replace("destroy_process_group()\n", "")
    with ranks(tmp_path, script.replace("{end}", end), 2, unloads=True) as running:
        errors = [process.communicate()[1] for process in running]
        assert [process.returncode for process in running] == [code, code], errors


FORKING = """
import os, time
import torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
rank, flag = dist.get_rank(), torch.zeros(1)
dp.init(f"parent_{rank}")

def step(enough):
    time.sleep(0.01)
    flag.fill_(enough)
    dist.all_reduce(flag)
    dp.step()
    return flag.item()

def agree(text):
    while not dp.status().agreement.startswith(text):
        step(False)

agree("leads" if rank == 0 else "follows")
child = os.fork()
if child == 0:
    os.environ["MASTER_PORT"] = "{port}"
    parents = dist.group.WORLD  # its threads are not here
    dp.init(f"child_{rank}", rank=rank)
    time.sleep(2.5)
    assert dp.status().agreement == "", dp.status()
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    agree("leads" if rank == 0 else "follows")
    while not step(os.path.exists("enough")):
        pass
    dp.shutdown()
    os._exit(0)
while True:
    done, code = os.waitpid(child, os.WNOHANG)
    assert code == 0
    if step(done != 0):
        break
if not done:
    assert os.waitpid(child, 0)[1] == 0
dp.shutdown()
dist.destroy_process_group()
"""


def test_a_forked_child_does_not_take_part_in_its_parents_group(tmp_path: Path) -> None:
    """The child does not speak for its parent. Ranks of its own group agree there."""
    script = FORKING.replace("{port}", str(free_port()))
    with ranks(tmp_path, script, 2) as running:
        path = tmp_path / "child_1" / "status" / "rank_1.json"
        wait_for(
            "the children to agree", lambda: (path.exists() and load_status(path).agreement) or None
        )
        for name in ("parent_0", "child_0"):
            code, _, errors = dynprof("arm", tmp_path / name, "--active", 2, "--wait")
            assert code == 0, errors
            assert "2 of 2 ranks saved it: " in errors
        (tmp_path / "enough").touch()
        assert "Traceback" not in end_well(running)


OUTLIVED = """
import os, signal, time
import torch, torch.distributed as dist, dynprof as dp
from dynprof.ranks import participant
participant.END_TIMEOUT_S, participant.FINAL_WAIT_S = 3600.0, 3600.0
dist.init_process_group("gloo")
rank = dist.get_rank()
dp.init(f"desk_{rank}")
while not dp.status().agreement.startswith("leads" if rank == 0 else "follows"):
    time.sleep(0.01)
    dp.step()
dist.barrier()
if rank == 0 and os.fork() == 0:
    signal.pause()  # as a worker of a loader that nobody has ended
dist.barrier()
dist.destroy_process_group()
"""


def test_a_child_that_outlives_the_group_does_not_keep_the_job_from_ending(tmp_path: Path) -> None:
    """The child holds the sockets of the store's dead server: the ranks send nothing."""
    with ranks(tmp_path, OUTLIVED, 2) as running:
        for process in running:
            assert process.wait() == 0
