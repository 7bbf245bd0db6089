"""Data that is recorded in addition to the profiler: host, collections, marks, arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.captures.manifest import Manifest
from tests.integration.running import TORCH_JOB, RunningJob, operators

if TYPE_CHECKING:
    from pathlib import Path

LOOP = """
import dynprof.mstx as mstx, gc, threading
dp.init("prof_config")
while True:
    crossing = mstx.range_start("crossing", domain="io")
    with mstx.annotate("training"):
        train_one_step()
    mstx.mark("after training")
    thread = threading.Thread(target=mstx.range_end, args=[crossing])
    thread.start(); thread.join()
    kept = [[number] for number in range(10_000)]
    gc.collect()
    time.sleep(0.02)
    dp.step()
"""
PYTHON_JOB = """
import time, dynprof as dp
def train_one_step():
    return sum(range(1000))
"""
JOBS = {"torch": TORCH_JOB, "python": PYTHON_JOB}


Captures = list[tuple[Manifest, dict[str, Any]]]
ASKED: tuple[dict[str, Any], ...] = (
    {
        "host_sys": ["CPU", "mem", "DISK", "NETWORK", "NUMA"],
        "gc_detect_threshold": 0.2,
        "mstx": True,
    },
    {"gc_detect_threshold": 60_000, "mstx": True, "mstx_domain_include": ["io"]},
    {"mstx": True, "mstx_domain_exclude": ["io"]},
    {},
)
"""The config of each capture."""


@pytest.fixture(scope="module", params=JOBS)
def captures(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Captures:
    """Run a job with marks on each backend in turn; return a capture for each of the settings."""
    if request.param == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    folder = tmp_path_factory.mktemp("marked")
    with RunningJob(folder, JOBS[request.param] + LOOP) as job:
        job.when("training", lambda status: status.step > 3)
        found = []
        for number, experimental in enumerate(ASKED, 1):
            job.edit(active=10 if number == 1 else 2, experimental_config=experimental)
            found.append(job.capture(number))
        return found


def events_of(trace: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    """Return the events with these members."""
    return [e for e in trace["traceEvents"] if all(e.get(k) == v for k, v in wanted.items())]


def span_of_steps(trace: dict[str, Any]) -> tuple[float, float]:
    """Return the start of the first step and the end of the last, in us."""
    steps = [e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
    steps = [e for e in steps if e["ph"] == "X"]
    return min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)


def test_the_host_is_sampled_on_counter_tracks(captures: Captures) -> None:
    """CPU, memory, disk and network are counters within the window; missing ones are named."""
    manifest, trace = captures[0]
    begin, end = span_of_steps(trace)
    for name in ("host cpu", "host mem", "host network"):
        samples = events_of(trace, ph="C", name=name)
        assert len(samples) >= 3, name
        assert all(begin - 1e5 <= e["ts"] <= end + 1e6 for e in samples)
    busy = [e["args"]["busy percent"] for e in events_of(trace, name="host cpu")]
    assert all(0 <= percent <= 100 for percent in busy)
    memory = events_of(trace, name="host mem")[0]["args"]
    assert 10 < memory["this process MB"] < memory["used MB"]
    assert any("NUMA is not sampled" in text for text in manifest.lost)


def test_long_collections_have_a_track(captures: Captures) -> None:
    """Collections longer than the threshold are recorded with their generation, others are not."""
    (_, trace), (_, other), *_ = captures
    begin, end = span_of_steps(trace)
    found = events_of(trace, cat="gc", name="collection of generation 2")
    assert len(found) >= 10
    assert all(e["dur"] >= 200 and begin <= e["ts"] <= end for e in found)
    assert events_of(other, cat="gc") == []


def test_marks_and_ranges_are_in_the_trace(captures: Captures) -> None:
    """Moments, ranges, and ranges that another thread ends are in their steps."""
    _, trace = captures[0]
    begin, end = span_of_steps(trace)
    assert len(events_of(trace, name="after training", ph="i")) == 10
    training = events_of(trace, name="training", ph="X", cat="mstx")
    assert len(training) == 10
    assert all(begin <= e["ts"] and e["ts"] + e["dur"] <= end for e in training)
    for operator in operators(trace, "aten::addmm"):
        assert any(e["ts"] < operator["ts"] < e["ts"] + e["dur"] for e in training)
    crossing = events_of(trace, name="crossing", ph="X", cat="mstx")
    assert len(crossing) == 10
    tracks = {
        e["tid"]: e["args"]["name"]
        for e in events_of(trace, name="thread_name")
        if e["args"]["name"].startswith("marks: ")
    }
    assert {tracks[e["tid"]] for e in training} == {"marks: default"}
    assert {tracks[e["tid"]] for e in crossing} == {"marks: io"}


def test_domains_are_included_or_excluded(captures: Captures) -> None:
    """The trace has only marks of domains that are included, or not excluded."""
    names = ("crossing", "training")
    shown = [[bool(events_of(trace, name=name)) for name in names] for _, trace in captures[1:]]
    assert shown == [[True, False], [False, True], [False, False]]


def test_arguments_of_operators_are_written(tmp_path: Path) -> None:
    """Torch's execution trace is next to the manifest, closed to other users."""
    pytest.importorskip("torch", reason="torch is not installed")
    with RunningJob(tmp_path, "import os\nos.umask(0)\n" + TORCH_JOB + LOOP) as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(active=3, experimental_config={"record_op_args": True})
        manifest, trace = job.capture()
        (path,) = job.root.rglob("rank_0.execution_trace.json")
        assert path.stat().st_mode & 0o007 == 0
        nodes = json.loads(path.read_text())["nodes"]
        names = [node["name"] for node in nodes]
        assert names.count("aten::addmm") == len(operators(trace, "aten::addmm")) == 6
        shapes = next(node["inputs"]["shapes"] for node in nodes if node["name"] == "aten::addmm")
        assert shapes[1] == [16, 32]
        assert manifest.lost == ()
        assert not list(job.root.glob(".*recording"))
