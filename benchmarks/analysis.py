"""Measure the analysis: MB per second and peak memory, next to other readers in one run.

``analysis.py [MEGABYTES ...]``. Each reader runs in its own process on the same traces. One trace
is of an encoder with shapes, memory and stacks. ``DYNPROF_TRACES`` may name a folder with a real
GPU trace. ``orjson`` and HolisticTraceAnalysis are measured if they are installed, as by ``make
bench-analysis``. The outputs are csv, json, Parquet, stacks and report.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.repeated_trace import repeat_trace
from benchmarks.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZES_MB = [int(size) for size in sys.argv[1:] if size.isdecimal()] or [35, 60, 200]
DEVICE = Path(os.environ.get("DYNPROF_TRACES", "../shared/traces"), "a100_control.json.gz")
"""A real GPU trace that is repeated to those sizes. It is left out if the file is missing."""
RUNS = 3
"""Runs of each reader. The table shows the median."""
_ANALYSE = "from dynprof.analysis.runs.many_traces import analyse_each\n"
READERS = {
    "dynprof: read into columns": "from dynprof.analysis.reading.trace import load_trace\n"
    "load_trace(path)",
    "dynprof: counts and times by operator": "from dynprof.analysis.measures.measured_trace import "
    "MeasuredTrace\nMeasuredTrace(path).averages",
    "dynprof: all tables, one process": _ANALYSE + "analyse_each([path], ['text'], processes=1)",
    "dynprof: all tables": _ANALYSE + "if __name__ == '__main__': analyse_each([path], ['text'])",
    "dynprof: all tables and the database": _ANALYSE
    + "if __name__ == '__main__': analyse_each([path], ['text', 'db'])",
    "json.loads alone": "import json; json.loads(path.read_bytes())",
    "orjson.loads alone": "import orjson; orjson.loads(path.read_bytes())",
    "HolisticTraceAnalysis: loading": "from hta.trace_analysis import TraceAnalysis\n"
    "TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))",
}
BREAKDOWN = "HolisticTraceAnalysis: loading and breakdown"
OF_DEVICES = {
    BREAKDOWN: READERS["HolisticTraceAnalysis: loading"]
    + ".get_temporal_breakdown(visualize=False)"
}
"""Readers that need the kernels of a device."""
STEPS = (2_500, 5_000, 10_000, 20_000)
REPORT = "report"
REPORT_CODE = (
    "from dynprof.analysis.measures.measured_trace import MeasuredTrace\n"
    "from dynprof.analysis.report.contents import write_report\n"
    "write_report(MeasuredTrace(path), path.with_suffix('.html'))"
)
NEEDS = {
    "orjson.loads alone": "orjson",
    "HolisticTraceAnalysis: loading": "hta",
    BREAKDOWN: "hta",
}


def make_trace(path: Path, megabytes: int) -> float:
    """Write a trace of about this size; return the seconds of torch's key_averages()."""
    import torch

    from benchmarks.closing import training

    step = training("encoder")
    step()
    count = max(1, round(megabytes / 2.5))
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=count, repeat=1)
    with torch.profiler.profile(
        schedule=schedule, record_shapes=True, profile_memory=True, with_stack=True
    ) as prof:
        for number in range(count + 1):
            step()
            if number < count:
                prof.step()
    prof.export_chrome_trace(str(path))
    began_s = time.perf_counter()
    prof.key_averages()
    return time.perf_counter() - began_s


def measure(code: str, path: Path) -> tuple[float, float]:
    """Return seconds without start and imports, and the peak memory in MB."""
    script = (
        "import sys, time, warnings; warnings.simplefilter('ignore')\n"
        "from pathlib import Path; path = Path(sys.argv[1])\n"
        "import dynprof.analysis.runs.one_trace\n"
        f"began_s = time.perf_counter()\n{code}\n"
        "print('took', time.perf_counter() - began_s)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    output, _ = process.communicate()
    took = [line.split()[1] for line in output.splitlines() if line.startswith("took")]
    return float(took[-1]), _peak_mb()


def _peak_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3


def apart(name: str, path: Path) -> tuple[float, float]:
    """Measure in a process whose only child is the reader: the system keeps the highest peak."""
    command = [sys.executable, "-m", "benchmarks.analysis", "--one", name, str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def read_by_each(kind: str, path: Path, readers: Iterable[str]) -> list[tuple[str, ...]]:
    """Return a row for each of these readers that is installed."""
    size, rows = path.stat().st_size / 1e6, []
    for name in readers:
        if importlib.util.find_spec(NEEDS.get(name, "json")) is None:
            continue
        runs = [apart(name, path) for _ in range(RUNS)]
        seconds, peak = (statistics.median(figures) for figures in zip(*runs, strict=True))
        rows.append(_row(f"{kind}, {size:.0f} MB", name, seconds, size, f"{peak:,.0f} MB"))
    return rows


def write_steps(path: Path, count: int) -> None:
    """Write a trace of short steps, each with ten operators that launch a kernel."""
    host, device = {"ph": "X", "pid": 1, "tid": 1}, {"ph": "X", "pid": 0, "tid": 7}
    events = []
    for step in range(count):
        name, begin = f"ProfilerStep#{step}", 1000 * step
        events.append({**host, "cat": "user_annotation", "name": name, "ts": begin, "dur": 990})
        for place in range(10):
            number, begin = 10 * step + place, 1000 * step + 20 + 90 * place
            of = {"correlation": number, "External id": number}
            work = {**of, "device": 0, "stream": 7}
            events += [
                {**host, "cat": "cpu_op", "name": "aten::mm", "ts": begin, "dur": 40, "args": of},
                {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin + 5,
                 "dur": 8, "args": of},
                {**device, "cat": "kernel", "name": "gemm", "ts": begin + 20, "dur": 60,
                 "args": work},
            ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))


def reports_of_steps() -> list[tuple[str, ...]]:
    """Return a row for reports of more and more steps: seconds grow as the steps do."""
    rows: list[tuple[str, ...]] = []
    for count in STEPS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.pt.trace.json")
            write_steps(path, count)
            runs = [apart(REPORT, path) for _ in range(RUNS)]
            seconds, peak = (statistics.median(figures) for figures in zip(*runs, strict=True))
        rows.append(
            (f"{count:,}", f"{seconds:.2f}", f"{1e6 * seconds / count:.0f}", f"{peak:,.0f}")
        )
    return rows


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    rows = []
    for size_mb in SIZES_MB:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.pt.trace.json")
            averages_s = make_trace(path, size_mb)
            rows += read_by_each("host", path, READERS)
            size = path.stat().st_size / 1e6
            title = "torch: key_averages() in the job"
            rows.append(_row(f"host, {size:.0f} MB", title, averages_s, size, "-"))
        if DEVICE.is_file():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "a.pt.trace.json")
                repeat_trace(DEVICE, path, size_mb)
                rows += read_by_each("GPU", path, READERS | OF_DEVICES)
    steps = ("steps", "seconds", "us a step", "MB at most")
    print_table("Reports of many short steps", steps, reports_of_steps())
    head = ("trace", "reader", "seconds", "MB/s", "memory at most")
    print_table(f"From a trace to tables, {os.cpu_count()} CPUs", head, rows)


def _row(trace: str, name: str, seconds: float, size: float, peak: str) -> tuple[str, ...]:
    return trace, name, f"{seconds:.2f}", f"{size / seconds:,.0f}", peak


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        code = {**READERS, **OF_DEVICES, REPORT: REPORT_CODE}[sys.argv[2]]
        print(json.dumps(measure(code, Path(sys.argv[3]))))
    else:
        main()
