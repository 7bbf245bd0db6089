"""Ranks, their leader and their store die or fall silent in an agreement; training continues."""

from __future__ import annotations

import contextlib
import os
import signal
import textwrap
from typing import TYPE_CHECKING

import psutil
import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.captures.window_record import load_window_record
from dynprof.journal.status import load_status
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, launched, ranks
from tests.integration.running import DESCENT, below, wait_for
from tests.pace import patience_s

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.processes import Process

TRAINING = (
    """
torch.set_num_threads(1)
def training():
    torch.manual_seed(rank)
"""
    + textwrap.indent(DESCENT, "    ")
    + """
    while True:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.item()

"""
)

JOB = (
    """
import itertools, os, time
import torch, torch.distributed as dist, dynprof as dp
from dynprof.ranks import agreements, participant
agreements.PROPOSED_WITHIN_S, participant.SILENT_CHECKS = 1.0, 3
dist.init_process_group("gloo")
rank = dist.get_rank()

"""
    + TRAINING
    + """dp.init(f"desk_{rank}")
losses = []
for loss in training():  # no rank waits for another, so that one may die
    losses.append(loss)
    time.sleep(0.01)
    while os.path.exists(f"evaluates_{rank}"):
        time.sleep(0.01)
    dp.step()
    if len(losses) % 5 == 0:
        with open(f"steps_{rank}", "w") as file:
            file.write(str(len(losses)))
    if os.path.exists("enough"):
        break
dp.shutdown()
assert losses == list(itertools.islice(training(), len(losses)))
print("trained", flush=True)
os._exit(0)  # gloo waits for those that are gone
"""
)


@contextlib.contextmanager
def job(folder: Path, count: int) -> Iterator[list[Process]]:
    """Run a job whose ranks agree, and let it end; surviving ranks have the expected losses."""
    with ranks(folder, JOB, count) as running:
        for rank in range(count):
            said = "leads" if rank == 0 else "follows rank 0"
            follows(folder, rank, said)
        yield running
        (folder / "enough").touch()
        alive = [process for process in running if process.poll() is None]
        errors = end_well(alive)
        assert "Traceback" not in errors, errors


def follows(folder: Path, rank: int, said: str) -> None:
    """Wait until a rank's status shows its part in agreements."""
    path = folder / f"desk_{rank}" / "status" / f"rank_{rank}.json"
    wait_for(said, lambda: (path.exists() and said in load_status(path).agreement) or None)


def by_itself(folder: Path, rank: int) -> None:
    """Wait until a rank's status shows that it takes no part in agreements."""
    path = folder / f"desk_{rank}" / "status" / f"rank_{rank}.json"
    wait_for("its status", lambda: not load_status(path).agreement or None)


def heard(folder: Path, rank: int, text: str) -> None:
    """Wait until a rank's log has this."""
    wait_for(f"{text!r} of rank {rank}", lambda: text in log(folder, rank) or None)


def steps(folder: Path, rank: int) -> int:
    """Return the approximate number of steps that a rank has trained."""
    path = folder / f"steps_{rank}"
    return wait_for("steps", lambda: int((path.exists() and path.read_text()) or 0) or None)


def log(folder: Path, rank: int) -> str:
    """Return the log of a rank's newest process."""
    paths = (folder / f"desk_{rank}" / "log").glob("*.log")
    return max(paths, key=lambda path: path.stat().st_mtime).read_text()


def arm(folder: Path, rank: int, *options: object) -> tuple[int, str]:
    """Request a window in a rank's directory; return the exit code and the output."""
    code, _, errors = dynprof("arm", folder / f"desk_{rank}", "--active", 3, *options, "--wait")
    return code, errors


def others_saved(path: Path) -> bool:
    """Return whether a window's record has captures of ranks 0 and 1, and misses rank 2."""
    record = load_window_record(path)
    outcomes = {rank: one.outcome for rank, one in record.ranks.items()}
    return outcomes == {0: "saved", 1: "saved"}


def killed(process: Process) -> None:
    """Kill a rank, and wait until its end is known."""
    process.kill()
    process.wait(patience_s())


def captured(folder: Path) -> Sequence[int]:
    """Return the ranks that have captures."""
    return sorted(load_manifest(path).rank for path in below(folder, "rank_*.info.json"))


def test_a_rank_that_is_killed_while_it_records(tmp_path: Path) -> None:
    """The others have their captures. The killed rank is named as missing, and not waited for."""
    with job(tmp_path, 3) as running:
        assert dynprof("arm", tmp_path / "desk_0", "--active", 300)[0] == 0
        heard(tmp_path, 2, "; recording steps")
        killed(running[2])
        (path,) = wait_for("the record", lambda: below(tmp_path, "window.json") or None)
        wait_for("the end", lambda: others_saved(path) or None)
        record = load_window_record(path)
        assert record.missing == {2: "it does not answer"}
        assert not record.complete
        code, errors = arm(tmp_path, 0, "--patience-s", 1)
        assert code == 5, errors
        assert "2 of 3 ranks saved it: " in errors
        assert "rank 2: " in errors


def test_a_stopped_rank_is_left_out_until_it_continues(tmp_path: Path) -> None:
    """Its silence delays the others once, by seconds. It drops what they have given up."""
    with job(tmp_path, 3) as running:
        desk = tmp_path / "desk_0"
        assert dynprof("arm", desk, "--active", 3, "--start-step", 1_000_000)[0] == 0
        heard(tmp_path, 1, "request 1: accepted")
        os.kill(running[1].pid, signal.SIGSTOP)
        code, errors = arm(tmp_path, 0, "--patience-s", 1)
        assert code == 5, errors
        assert "2 of 3 ranks saved it: " in errors
        assert "rank 1: it did not answer in time" in errors
        os.kill(running[1].pid, signal.SIGCONT)
        heard(tmp_path, 1, "request 1: superseded by a newer request")
        wait_for("its return", lambda: arm(tmp_path, 0)[0] == 0 or None)
    assert "rank 1 takes no part: it did not answer in time" in log(tmp_path, 0)
    assert set(captured(tmp_path)) == {0, 1, 2}


def test_ranks_serve_their_own_saves_after_leader_and_store_die(tmp_path: Path) -> None:
    """Each other rank says so, and serves the saves in its own directory."""
    with job(tmp_path, 3) as running:
        killed(running[0])
        for rank in (1, 2):
            heard(tmp_path, rank, "the job's store was lost")
        by_itself(tmp_path, 1)
        arm(tmp_path, 1)
    assert captured(tmp_path) == [1]


RESTARTED = (
    """
import itertools, os, time
import torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
rank, again = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "2"

"""
    + TRAINING
    + """dp.init(f"desk_{rank}")
losses = []
flag = torch.zeros(1)
for loss in training():
    losses.append(loss)
    time.sleep(0.01)
    flag.fill_(os.path.exists("enough") and again)
    dist.all_reduce(flag)
    dp.step()
    if flag.item():
        break
assert losses == list(itertools.islice(training(), len(losses)))
dist.destroy_process_group()
open(f"trained_{rank}", "w").close()
"""
)


CUT_OFF = {
    "accepted, ": ("--active", 3, "--start-step", 1_000_000),
    "; recording steps": ("--active", 1_000_000),
}


def test_restarts_while_a_window_waits_and_while_one_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank is killed, and the ranks that torchrun restarts agree on later saves.

    With one store for all attempts, gloo finds addresses of dead ranks there, and may hang.
    """
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    twice = ("--standalone", "--nproc-per-node=2", "--max-restarts=2")
    paths = [tmp_path / f"desk_{rank}" / "status" / f"rank_{rank}.json" for rank in (0, 1)]
    with launched(tmp_path, RESTARTED, *twice) as process:
        for said, asked in CUT_OFF.items():
            follows(tmp_path, 0, "leads")
            follows(tmp_path, 1, "follows rank 0")
            before = {load_status(path).pid for path in paths}
            assert dynprof("arm", tmp_path / "desk_0", *asked)[0] == 0
            heard(tmp_path, 0, "ranks 0 to 1 agreed on step ")
            heard(tmp_path, 1, said)
            os.kill(load_status(paths[1]).pid, signal.SIGKILL)
            for path in paths:
                gone = lambda path=path: load_status(path).pid not in before or None  # noqa: E731, B023
                wait_for("its successor", gone)
        follows(tmp_path, 0, "leads")
        follows(tmp_path, 1, "follows rank 0")
        code, errors = arm(tmp_path, 0)
        assert code == 0, errors
        assert "2 of 2 ranks saved it: " in errors
        (tmp_path / "enough").touch()
        end_well([process])
    found = [load_manifest(path) for path in below(tmp_path, "rank_*.info.json")]
    anew = [one for one in found if one.pid not in before]
    assert sorted(one.rank for one in anew) == [0, 1]
    assert len({(one.steps.first, one.steps.last) for one in anew}) == 1
    assert {path.name for path in tmp_path.glob("trained_*")} == {"trained_0", "trained_1"}


@pytest.mark.long
def test_a_store_that_does_not_answer(tmp_path: Path) -> None:
    """The store's host is stopped: training continues, and each rank serves its own saves."""
    torchrun = ("--standalone", "--nproc-per-node=2")
    with launched(tmp_path, JOB, *torchrun) as process:
        follows(tmp_path, 0, "leads")
        follows(tmp_path, 1, "follows rank 0")
        steps(tmp_path, 1)  # otherwise it may still import what an optimizer needs
        psutil.Process(process.pid).suspend()
        for rank in (1, 0):
            before = steps(tmp_path, rank)
            dynprof("arm", tmp_path / f"desk_{rank}", "--active", 3)
            heard(tmp_path, rank, "the job's store has not answered for 3 s")
            assert steps(tmp_path, rank) >= before + 10  # it has not waited for the store
            by_itself(tmp_path, rank)
        ends = "request 1: refused", "request 1: saved"  # saved if rank 0 knew it before
        wait_for("an end", lambda: any(end in log(tmp_path, 0) for end in ends) or None)
        arm(tmp_path, 1)
        wait_for("its capture", lambda: 1 in captured(tmp_path) or None)
        psutil.Process(process.pid).resume()
        for rank in (0, 1):
            heard(tmp_path, rank, "the ranks agree again")
        wait_for("both", lambda: arm(tmp_path, 0)[0] == 0 or None)
        (tmp_path / "enough").touch()
        assert "Traceback" not in end_well([process])
    alone = log(tmp_path, 0).count("request 1: saved")
    assert captured(tmp_path) == [*[0] * alone, 0, 1, 1]
