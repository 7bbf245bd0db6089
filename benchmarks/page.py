"""Measure the dashboard of many jobs: ``page.py [JOBS] [RANKS] [BROWSERS] [SECONDS]``.

There are jobs of two ranks, and one job of many ranks. Their processes seem to be on other
machines: only their files exist, and each is written again every five seconds. Each measurement has
a server of its own. Every browser follows the readings, and loads the list of jobs after each.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.tables import print_table
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.pace_changes import RecentPace
from dynprof.journal.status import HEARTBEAT_S, Status
from dynprof.runtime.fresh_interpreter import command

A_JOB, A_MACHINE = 2, 8
TOKEN = "0123456789abcdef" * 2
HEAD = ("jobs", "ranks", "first answer", "list", "a job", "browsers", "readings", "memory, grown")


def main() -> None:
    """Measure and print."""
    jobs, ranks, browsers, seconds = map(int, sys.argv[1:] or ("1000", "10000", "50", "60"))
    rows = [measure(jobs, A_JOB, browsers, seconds), measure(1, ranks, browsers, seconds)]
    print_table("The dashboard of many jobs", HEAD, rows)


def measure(jobs: int, ranks: int, browsers: int, seconds: int) -> tuple[str, ...]:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as name:
        place, ended = Path(name), threading.Event()
        write(place, jobs, ranks, 0)
        (place / "token").touch(0o600)
        (place / "token").write_text(TOKEN)
        line = command("dynprof", "serve", name, "--listen", "0", f"--token-file={place / 'token'}")
        writer = threading.Thread(target=keep_fresh, args=(place, jobs, ranks, ended))
        writer.start()
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                address = server.stdout.readline().strip()
                return (
                    f"{jobs:,}",
                    f"{jobs * ranks:,}",
                    *asyncio.run(watch(address, psutil.Process(server.pid), browsers, seconds)),
                )
            finally:
                ended.set()
                server.kill()
                writer.join()


async def watch(
    address: str, server: psutil.Process, browsers: int, seconds: int
) -> tuple[str, ...]:
    """Return the times of answers, the number of readings, and the memory of the server."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=address, headers=headers, timeout=120, limits=limits
    ) as client:
        began_s = time.perf_counter()
        listed = (await client.get("/api/fleet")).json()["jobs"]
        first_s = time.perf_counter() - began_s
        took_s: list[float] = []
        numbers: set[int] = set()
        until_s = time.monotonic() + seconds
        each = [browse(client, until_s, took_s, numbers) for _ in range(browsers)]
        early = memory_later(server, seconds / 4)
        before_mb, _ = await asyncio.gather(early, asyncio.gather(*each))
        after_mb = server.memory_info().rss / 1e6
        job_s = []
        for _ in range(5):
            began_s = time.perf_counter()
            await client.get("/api/job", params={"job": listed[0]["name"]})
            job_s.append(time.perf_counter() - began_s)
    return (
        f"{first_s:.2f} s",
        f"{statistics.median(took_s) * 1e3:.0f} ms, {max(took_s):.2f} s",
        f"{max(job_s):.2f} s",
        str(browsers),
        str(len(numbers)),
        f"{after_mb:.0f} MB, {after_mb - before_mb:+.0f} MB",
    )


async def memory_later(server: psutil.Process, seconds: float) -> float:
    """Return the memory of the server in MB after some seconds."""
    await asyncio.sleep(seconds)
    found: float = server.memory_info().rss / 1e6
    return found


async def browse(
    client: httpx.AsyncClient, until_s: float, took_s: list[float], numbers: set[int]
) -> None:
    """Follow the readings as a browser does, and load the list of jobs after each."""
    async with client.stream("GET", "/api/events") as events:
        async for line in events.aiter_lines():
            if line.startswith("data:"):
                numbers.add(json.loads(line[5:])["number"])
                began_s = time.perf_counter()
                await client.get("/api/fleet")
                took_s.append(time.perf_counter() - began_s)
            if time.monotonic() > until_s:
                return


def keep_fresh(place: Path, jobs: int, ranks: int, ended: threading.Event) -> None:
    """Write all files again, as ranks do."""
    number = 0
    while not ended.wait(HEARTBEAT_S):
        number += 1
        write(place, jobs, ranks, number)


def write(place: Path, jobs: int, ranks: int, number: int) -> None:
    """Write the status of each rank of each job."""
    now_s = time.time()
    status = Status(
        "idle", 1000 + number, "dp.step()", world_size=ranks, pid=7, heartbeat=now_s + 60,
        longest_s=1.0, step_ms=12.5, hour_ms=12.5,
        edits=tuple(Answer(n, "0" * 64, 1e9 + n, "saved", "saved in 3 ms") for n in range(5)),
        recent_pace=RecentPace(1.0, 2.0, (12.5,) * 24),
        recent_steps=tuple((now_s - n, 1000 - n) for n in range(15)),
    )  # fmt: skip
    told: dict[str, Any] = dataclasses.asdict(status)
    for job in range(jobs):
        folder = place / f"job{job}" / "prof" / "status"
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(ranks):
            told |= {"rank": rank, "host": f"node{rank // A_MACHINE:04}"}
            new = folder / ".new"
            new.write_text(json.dumps(told))
            new.replace(folder / f"rank_{rank}.json")


if __name__ == "__main__":
    main()
