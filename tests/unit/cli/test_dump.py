"""``dynprof dump``: the lines for given stacks."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.cli.dump import collective, places_of, report, where
from dynprof.journal.stack_dump import StackDump, layout_of, write_dump
from dynprof.journal.status import Status
from dynprof.runtime.layout import host_name, pid_namespace
from dynprof.runtime.stacks import MAIN, ProcessStacks, ThreadStack

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TORCH = "/env/lib/python3.11/site-packages/torch/distributed"
WAITING = (
    f"_wait ({TORCH}/distributed_c10d.py:99)",
    f"all_reduce ({TORCH}/distributed_c10d.py:3252)",
    f"_exception_logger.<locals>.wrapper ({TORCH}/c10d_logger.py:83)",
    "<module> (/data/train.py:9)",
)
FETCHING = ("fetch_from_store (/data/data.py:16)", "<module> (/data/train.py:8)")


def rank(number: int, *frames: str, children: tuple[ProcessStacks, ...] = ()) -> StackDump:
    """Return the stacks of a rank."""
    threads = (ThreadStack(MAIN, frames), ThreadStack("dynprof-journal", ("run (/x.py:1)",)))
    process = ProcessStacks(70 + number, threads=threads)
    return StackDump(number, "", "host", 413, time.time(), "the job", process, children)


def test_the_rank_that_waits_in_no_collective_comes_first() -> None:
    """It is named even where as many ranks wait for it."""
    waiting = [rank(number, *WAITING) for number in (0, 1, 2)]
    assert where([*waiting, rank(3, *FETCHING)]) == [
        "rank 3 is in /data/data.py:16 in fetch_from_store",
        "ranks 0 to 2 wait in all_reduce (distributed_c10d.py:3252)",
    ]
    assert where([waiting[0], rank(1, *FETCHING)])[0].startswith("rank 1 is in ")


def test_ranks_in_different_collectives_are_told_apart() -> None:
    """The fewest come first: a mismatch."""
    other = WAITING[1].replace("all_reduce", "broadcast")
    found = where([rank(0, *WAITING), rank(1, other), rank(2, *WAITING)])
    assert [line.partition(" (")[0] for line in found] == [
        "rank 1 waits in broadcast",
        "ranks 0, 2 wait in all_reduce",
    ]


def test_a_rank_outside_of_the_backward_pass_comes_first() -> None:
    """Gradients are reduced in C++, so the other ranks have no frame of a collective."""
    graph = TORCH.replace("distributed", "autograd/graph.py")
    backward = (f"_engine_run_backward ({graph}:979)", "<module> (/data/train.py:9)")
    found = where([rank(0, *backward), rank(1, WAITING[1]), rank(2, *backward)])
    assert found[0].startswith("rank 1 waits in all_reduce")
    assert found[1] == (
        "ranks 0, 2 are in _engine_run_backward (graph.py:979), called at /data/train.py:9 in "
        "<module>, where the backward pass may wait for other ranks"
    )
    assert where([rank(0, *backward), rank(1, *FETCHING)])[0].startswith("rank 1 is in /data/data")
    assert "may wait" not in where([rank(0, *backward)])[0]


def test_a_stack_outside_of_collectives_has_none() -> None:
    """A launcher of torch.distributed in a stack is none."""
    assert collective([*FETCHING, f"main ({TORCH}/run.py:10)"]) == ""
    assert where([rank(0)]) == ["rank 0 is in no Python function"]


def test_the_thread_that_holds_the_gil_of_a_silent_rank_comes_first() -> None:
    """The main thread only waits for it; in a stopped process no thread is to blame."""
    main = ThreadStack(MAIN, ("wait (/env/lib/python3.11/threading.py:327)", WAITING[-1]))
    holder = ThreadStack("uploader", ("compress (/data/job.py:3)",), holds_gil=True)
    silent = StackDump(
        0, "", "host", 1155, time.time(), "py-spy",
        ProcessStacks(70, "", "sleeping", (main, holder)),
        silent="does not answer since 08:36:23: a call holds the GIL", heard_at=1e9,
    )  # fmt: skip
    first, about, *_ = report([silent])
    place = "/data/job.py:3 in compress on thread uploader, which holds the GIL"
    assert first == f"rank 0 is in {place}"
    clock = time.strftime("%H:%M:%S", time.localtime(1e9))
    assert f"step 1,155 at {clock}, when it was last heard, process 70" in about
    talks = replace(silent, silent="")
    stopped = replace(silent, process=replace(silent.process, state="stopped"))
    (waits,) = where([talks])
    assert waits.startswith("rank 0 is in wait (threading.py:327), called at /data/train.py:9 in ")
    assert where([stopped]) == [waits]


def test_the_place_of_a_stuck_worker_is_with_that_of_its_rank(tmp_path: Path) -> None:
    """The main thread only waits for it."""
    worker = ProcessStacks(99, "pt_data_worker", "sleeping", (ThreadStack(MAIN, FETCHING),))
    found = rank(0, "select (/env/lib/python3.11/selectors.py:415)", children=(worker,))
    stuck = Status("idle", host="host", pid=70, heartbeat=time.time(), since_last_step_s=60.0)
    path = layout_of(tmp_path, stuck).stacks
    path.parent.mkdir()
    write_dump(path, replace(found, process=replace(found.process, pid=70)))
    assert places_of([stuck], tmp_path) == (
        "rank 0 is in select (selectors.py:415); child 99 of rank 0 (pt_data_worker, sleeping) is "
        "in /data/data.py:16 in fetch_from_store"
    )


def test_status_reads_a_silent_rank_that_no_other_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call holds its GIL, and it is alone; the stacks are next to its log afterwards."""
    read: list[int] = []

    def read_it(_root: Path, status: Status) -> StackDump:
        read.append(status.rank)
        return rank(status.rank, *FETCHING)

    monkeypatch.setattr("dynprof.cli.dump.dump_from_outside", read_it)
    silent = Status("idle", rank=3, host=host_name(), pid=os.getpid())
    silent = replace(silent, pid_namespace=pid_namespace(), heartbeat=time.time() - 60)
    layout_of(tmp_path, silent).stacks.parent.mkdir()
    for _ in range(2):
        place = places_of([silent], tmp_path)
        assert (place, read) == ("rank 3 is in /data/data.py:16 in fetch_from_store", [3])


def test_equal_stacks_are_printed_once() -> None:
    """Threads of dynprof are counted."""
    lines = report([rank(number, *WAITING) for number in range(5)])
    named = "MainThread of rank 0; MainThread of rank 1; MainThread of rank 2; and 2 more"
    assert lines.count(named) == 1
    assert lines[lines.index(named) + 1 :][:4] == [f"    {frame}" for frame in WAITING]
    assert lines[-1] == "left out: 5 threads of dynprof; --json prints all"


def test_a_child_process_without_stacks_is_named_with_its_state() -> None:
    """The operator can look at it with another tool."""
    worker = ProcessStacks(99, "pt_data_worker", "disk-sleep", why_none="only root may")
    lines = report([rank(0, *FETCHING, children=(worker,))])
    said = "child 99 of rank 0 (pt_data_worker, disk-sleep) has no stacks: only root may"
    assert said in lines


def test_status_names_places_of_this_standstill_only(tmp_path: Path) -> None:
    """Stacks of an earlier one say nothing about it."""
    now_s = time.time()
    stuck = Status("idle", rank=3, host="host", pid=73, since_last_step_s=60.0, heartbeat=now_s)
    (tmp_path / "log").mkdir()
    path = layout_of(tmp_path, stuck).stacks
    assert places_of([stuck], tmp_path) == ""
    write_dump(path, rank(3, *FETCHING))
    assert places_of([stuck], tmp_path) == "rank 3 is in /data/data.py:16 in fetch_from_store"
    moved = Status("idle", rank=3, host="host", pid=73, since_last_step_s=0.0, heartbeat=now_s + 5)
    assert places_of([moved], tmp_path) == ""
