"""The lines of ``dynprof status`` below its table."""

from __future__ import annotations

import io
import time

from rich.console import Console

from dynprof.cli.status import screen
from dynprof.journal.status import Status
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
    assert line.startswith("ranks 0 to 1: windows close inline: about ")
    assert line.rstrip().endswith("; it crashed")


def test_a_dead_rank_shows_neither_state_nor_pace() -> None:
    """Both are from before its end."""
    old = Status("idle", rank=3, host="n", pid=7, step=5, step_ms=12.5, heartbeat=time.time() - 99)
    (line,) = [line for line in shown(old).splitlines() if "dead for" in line]
    assert line.split() == ["3", "n:7", "dead", "for", "99", "s", "5"]
