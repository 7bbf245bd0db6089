"""The lines of ``dynprof status`` below its table."""

from __future__ import annotations

import dataclasses
import io
import re
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dynprof.cli.status import screen
from dynprof.journal.status import SlowStepStatus, Status, WatchStatus
from dynprof.requests.capabilities import Capabilities

NPU = Capabilities("npu", missing="this process has not imported torch_npu")
TORCH = Capabilities("torch", ("CPU",), inline="it crashed", inline_on_device="it crashed")


def shown(*ranks: Status) -> str:
    """Return the output for some ranks."""
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        console.print(screen(list(ranks), 200))
    return capture.get()


def rank(number: int, capable: Capabilities) -> Status:
    """Return the status of a live rank of another machine."""
    return Status("idle", rank=number, profilers=(NPU, capable), host="n", heartbeat=time.time())


def test_ranks_that_close_inline_share_a_line() -> None:
    """Any number of ranks share it, without those that close detached."""
    found = shown(rank(0, TORCH), rank(1, TORCH), rank(2, Capabilities("torch", ("CPU",))))
    (line,) = [line for line in found.splitlines() if "inline" in line]
    assert line.startswith("ranks 0 to 1: windows close inline: the training ")
    assert line.rstrip().endswith("; it crashed")


def test_a_dead_rank_shows_neither_state_nor_pace() -> None:
    """Both are from before its end."""
    old = Status("idle", rank=3, host="n", pid=7, step=5, step_ms=12.5, heartbeat=time.time() - 99)
    (line,) = [line for line in shown(old).splitlines() if "dead for" in line]
    assert line.split() == ["3", "n:7", "dead", "for", "99", "s", "5"]


def test_only_the_rank_that_died_first_is_named() -> None:
    """A launcher ended the others: their neighbours may have seen that before they ended, too."""
    old = Status("idle", host="n", heartbeat=time.time() - 99)
    seen = {0: ("rank 1 died of SIGTERM", 1000.2), 2: ("rank 3 died of SIGKILL", 1000.1)}
    ranks = [
        dataclasses.replace(old, rank=number, death=death, death_at=at_s)
        for number, (death, at_s) in seen.items()
    ]
    said = shown(*ranks)
    assert re.search(r"rank 2 saw at \S+\.100 that rank 3 died of SIGKILL", said)
    assert "SIGTERM" not in said


def test_a_long_step_whose_thread_runs_is_said_so() -> None:
    """Health and exit code are those of a rank that trains."""
    place = "/data/train.py:40 in evaluate"
    now_s = time.time()
    status = Status(
        "idle", host="n", step=413, stuck_at=place, since_last_step_s=90, heartbeat=now_s
    )
    said = shown(dataclasses.replace(status, training_thread_runs=True))
    assert f"rank 0: still in step 413; the training thread runs, now in {place}" in said
    assert "alive" in said
    assert f"the training thread is in {place}" in shown(status)


def watching(number: int, step: int, waited_ms: float, text: str, ago_s: float = 5) -> Status:
    """Return the status of a live rank whose step of 300 ms was slow."""
    now_s = time.time()
    record = f"slow_steps/rank_{number}_step_{step}_20260131T031500Z.html"
    last = SlowStepStatus(step, 300, 20, waited_ms, text, record, now_s - ago_s)
    watch = WatchStatus(30, 50, 0.21, 4, 3, last, 0.4, is_limit_raised=True, unexplained=2)
    return Status("idle", rank=number, host="n", heartbeat=now_s, watch=watch)


def test_the_watch_shows_its_limit_its_cost_and_the_last_slow_step() -> None:
    """Ranks without a watch have no such line."""
    found = shown(watching(0, 1234, 0, "280 ms more in write_log (train.py:31)"), rank(1, TORCH))
    assert (
        "rank 0: watches for steps over 30 ms (step times vary); the watch uses 0.21% of one "
        "CPU (limit 0.4%), a sample every 50 ms; "
        "4 slow steps, 3 recorded, 2 without a known cause\n"
    ) in found.replace(" \n", "\n")
    assert re.search(
        r"rank 0: slow step 1234, at \d\d:\d\d:\d\d, took 300 ms, 20 ms is usual; 280 ms more in "
        r"write_log \(train.py:31\) \(slow_steps/rank_0_step_1234_\w+.html\)",
        " ".join(found.split()),
    )  # fmt: skip
    assert "rank 1: " not in found.replace("rank 1: windows", "")


def test_the_record_of_another_step_is_called_that() -> None:
    """Of slow steps with the same cause, only the first one has a record."""
    status = watching(0, 60, 0, "280 ms more in write_log (train.py:31)")
    assert status.watch
    assert status.watch.last
    last = replace(status.watch.last, step=24878)
    alike = replace(status, watch=replace(status.watch, last=last))
    assert "record of a like step:" not in shown(status)
    said = " ".join(shown(alike).split())
    assert "(train.py:31) (record of a like step: slow_steps/rank_0_step_60_" in said


def test_the_rank_that_the_others_waited_for_is_named() -> None:
    """In a step that was slow on several ranks; not if none of them waited."""
    waiting = [watching(number, 50, 270, "270 ms more waiting in all_reduce") for number in (0, 2)]
    working = watching(1, 50, 5, "280 ms more in load (data.py:9)")
    named = "slow step 50: ranks 0, 2 waited for rank 1, which worked 295 ms; 280 ms more in load"
    assert named in shown(*waiting, working)
    assert "waited for rank" not in shown(working, watching(0, 50, 5, "280 ms more in load"))
    assert "waited for rank" not in shown(working, watching(0, 51, 270, "waiting"))
    alone = "slow step 50: ranks 0, 2 waited, and no rank worked longer: look at the link"
    assert alone in shown(*waiting)
    assert "no rank worked longer" not in shown(waiting[0])
    old = [watching(number, 50, 270, "waiting", ago_s=90) for number in (0, 2)]
    assert "no rank worked longer" not in shown(*old)


def test_ranks_are_compared_in_the_slow_steps_that_all_of_them_know() -> None:
    """Ranks write their statuses at different times, and a step may be measured wrongly."""
    load = "280 ms more in load (data.py:9)"

    def knowing(number: int, waits_ms: dict[int, float]) -> Status:
        found = watching(number, 0, 0, load)
        assert found.watch
        assert found.watch.last
        slow = [replace(found.watch.last, step=step, waited_ms=ms) for step, ms in waits_ms.items()]
        return replace(found, watch=replace(found.watch, last=slow[0], earlier=tuple(slow[1:])))

    waiting = knowing(0, {250: 270, 200: 270, 150: 270, 100: 270, 50: 270})
    behind = knowing(2, {200: 270, 150: 270, 100: 270, 50: 270})
    said = shown(waiting, knowing(1, {300: 5, 250: 5, 200: 5, 150: 5}), behind)
    assert "slow step 200: ranks 0, 2 waited for rank 1, which worked 295 ms" in said
    said = shown(waiting, knowing(1, {200: 150, 150: 5, 100: 5}), behind)
    assert "slow step 150: ranks 0, 2 waited for rank 1" in said
    said = shown(waiting, knowing(1, {200: 270, 150: 130, 100: 270}), behind)
    assert "slow step 200: ranks 0 to 2 waited, and no rank worked longer" in said
    assert said.count("slow step 150:") == said.count("waited for") == 0


def test_paths_can_be_pasted() -> None:
    """They begin with the directory that the user has given; a URL is whole."""
    watched = watching(0, 50, 270, "270 ms more in load (data.py:9)")
    for last, place in (
        ("step_5-9/info/a.json", "p/step_5-9/info/a.json"),
        ("s3://b/a", "s3://b/a"),
    ):
        console = Console(file=io.StringIO(), width=200)
        with console.capture() as capture:
            console.print(screen([replace(watched, last_capture=last)], 200, Path("p")))
        assert f"last capture: {place}" in capture.get()
        assert "(p/slow_steps/rank_0_step_50_20260131T031500Z.html)" in capture.get()
