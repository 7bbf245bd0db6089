"""Measure the analysis of thousands of ranks: ``ranks.py [RANKS]``.

It writes a small trace for each rank; one rank is late. Every trace is analysed in full. Then the
reduction reads the Parquet files of all ranks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.tables import print_table
from dynprof.analysis.rank_comparison.comparison import Ranks
from dynprof.analysis.rank_comparison.parquet import RANK_TABLES, parquet_file
from dynprof.analysis.runs.many_traces import analyse_each
from dynprof.analysis.runs.one_trace import folder_of, traces_in

RANKS = int(sys.argv[1]) if sys.argv[1:] else 4096
STEPS, LATE_US = 5, 20_000.0


def main() -> None:
    """Measure and print."""
    late_rank = random.Random(7).randrange(RANKS)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(RANKS):
            write_trace(folder, rank, LATE_US * (rank == late_rank))
        traces = traces_in(folder)
        began_s = time.perf_counter()
        outcome = analyse_each(traces, ["text"])
        all_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        files = {
            table: [parquet_file(folder_of(trace), table) for trace in traces]
            for table in RANK_TABLES
        }
        found = Ranks(files).stragglers()
        reduced_s = time.perf_counter() - began_s
        (verdict,) = outcome.verdicts[folder]
    head = ("ranks", "late rank", "found", "traces to tables", "of it, reduction")
    row = (f"{RANKS:,}", str(late_rank), str(found[0].rank), f"{all_s:.1f} s", f"{reduced_s:.2f} s")
    print_table(f"Ranks side by side, {os.cpu_count()} CPUs", head, [row])
    print(verdict)


def write_trace(folder: Path, rank: int, late_us: float) -> None:
    """Write a rank's trace: three collectives a step; its clock is off by up to 1 s."""
    luck = random.Random(rank)  # noqa: S311 - no secret
    ahead_us = luck.uniform(-1e6, 1e6)
    events: list[dict[str, Any]] = []
    for step in range(STEPS):
        begin = 1e7 + step * 2e5 + ahead_us
        events.append(_span(f"ProfilerStep#{step}", "user_annotation", begin, 1.9e5))
        for place in range(3):
            since = begin + 100 + place * 6e4
            work = 2e4 + luck.uniform(-300, 300) + late_us
            events.append(_span("aten::mm", "cpu_op", since, work))
            waits = 5e4 - work
            events.append(_span("gloo:all_reduce", "user_annotation", since + work, waits))
    trace = {
        "baseTimeNanoseconds": 0,
        "distributedInfo": {"rank": rank, "world_size": RANKS},
        "traceEvents": events,
    }
    (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))


def _span(name: str, category: str, begin_us: float, took_us: float) -> dict[str, Any]:
    times = {"ts": round(begin_us, 3), "dur": round(took_us, 3)}
    return {"ph": "X", "pid": 1, "tid": 1, "name": name, "cat": category, **times}


if __name__ == "__main__":
    main()
