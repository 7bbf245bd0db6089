"""A job's check at its start for the leftovers of others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fake_job import Job


def left(root: Path, pid: int) -> Path:
    """Write a capture of an hour ago, begun and without a trace; return its folder."""
    info = root / "outgoing" / f"host_{pid}.rank0" / "step_1-2_20260101T000000Z" / "info"
    info.mkdir(parents=True)
    manifest = Manifest(
        dynprof="0", backend="fake", versions={}, host="host", pid=pid, rank=0, world_size=1,
        request=RequestRecord(number=1, edited_at="", sha256="", config={"prof_dir": "captures"}),
        steps=Steps(first=1, last=2, recorded=2, warmup=0), activities=("CPU",), opened_at="",
        closed_at="", complete=True, cost=Cost(open_ms=0, close_ms=0),
    )  # fmt: skip
    path = info / "rank_0.info.json"
    manifest.save(path)
    os.utime(path, (1e9, 1e9))
    return info.parent


def test_any_number_of_left_captures_gives_one_warning(job: Job) -> None:
    """A job of 1,000 ranks may leave as many, and each machine's log would list all."""
    first, *_ = [left(job.root, pid) for pid in range(10, 30)]
    upkeep = job.session._periodic_checks
    for _ in range(2):
        upkeep._clear_up_once()
    (text,) = [line for line in job.log().splitlines() if "never sent on" in line]
    command = f"python -I -m dynprof.captures.sender {first} {job.root}/captures/{first.name}"
    assert f"the capture in {first} was never sent on; to send it, run {command}; the" in text
    assert text.endswith("; the same for 19 more, which dynprof status names")
