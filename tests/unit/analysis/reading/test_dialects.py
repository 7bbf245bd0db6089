"""Traces of other profilers and converters are read as those of Kineto."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.launches import in_flight
from dynprof.analysis.reading.chunks import CHUNK
from dynprof.analysis.reading.events import COPIES, KERNELS, LAUNCHES, ON_DEVICE
from dynprof.analysis.reading.trace import load_trace
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]

PYTHON, CANN, HARDWARE, COMMUNICATION, OVERLAP = 4100, 4131, 4162, 4193, 4224
EPOCH_US = 1_747_113_600_000_000
COMPUTES = ("AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "NEW_CORE")
COPYING = ("MEMCPY_ASYNC", "PCIE_DMA_SQE")
CONTROLS = ("EVENT_WAIT", "NOTIFY_WAIT_SQE", "WRITE_VALUE_SQE")


def written(folder: Path, content: Any) -> Path:
    """Write a trace."""
    path = folder / "a.trace.json"
    path.write_text(json.dumps(content))
    return path


def span(pid: int, tid: int, name: str, ts: float, dur: float, **rest: Any) -> Event:
    """Return an event as torch_npu writes it: its time is text."""
    at = f"{EPOCH_US + int(ts)}.{round(ts % 1 * 1000):03}"
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": at, "dur": dur, **rest}


def of_npu(steps: int, *, queue: bool) -> list[Event]:
    """Return what torch_npu's analysis writes of a job.

    Args:
        steps: The number of steps; each has a kernel of each kind.
        queue: Whether a thread of its own launches, as torch_npu's task queue does. Only then
            there are arrows from operators; else the launch is inside its operator.
    """
    labels = {PYTHON: "Python", CANN: "CANN", HARDWARE: "Ascend Hardware",
              COMMUNICATION: "Communication", OVERLAP: "Overlap Analysis"}  # fmt: skip
    found: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in labels.items()
    ]
    for tid, name in ((2, "Group 0 Communication"), (3, "Plane 0")):
        found.append({"ph": "M", "name": "thread_name", "pid": COMMUNICATION, "tid": tid,
                      "args": {"name": name}})  # fmt: skip
    number = 0
    for step in range(steps):
        begin = 3000 * step
        found.append(span(PYTHON, 41, f"ProfilerStep#{step}", begin, 2900, cat="cpu_op"))
        for task in (*COMPUTES, *COPYING, *CONTROLS):
            number += 1
            op, launcher = begin + 100 * (number % 9) + 7, 42 if queue else 41
            found += [
                span(PYTHON, 41, f"aten::{task}", op, 90, cat="cpu_op"),
                span(CANN, launcher, "node@launch", op + 20, 8,
                     args={"level": "node", "connection_id": number}),
                span(HARDWARE, 2, task.title(), begin + 1000 + 100 * (number % 9), 50.125,
                     args={"Task Type": task, "Stream Id": 2, "connection_id": number}),
            ]  # fmt: skip
            flow = {"cat": "async_npu", "name": "torch_to_npu", "id": str(number)}
            ends = (("s", found[-3]), ("f", found[-1])) if queue else ()
            for kind, event in ends:
                at = {name: event[name] for name in ("pid", "tid", "ts")}
                found.append({"ph": kind, **flow, **at})
        found += [
            span(COMMUNICATION, 2, f"hcom_allReduce__101_{step}", begin + 1950, 250,
                 args={"connection_id": 10_000 + step} if queue else {}),
            span(COMMUNICATION, 3, "Notify_Wait", begin + 1960, 200),
            span(HARDWARE, 2, "hcom_allReduce__101", begin + 1950, 240,
                 args={"Task Type": "COMMUNICATION"}),
            span(OVERLAP, 2, "Computing", begin + 1000, 900, args={}),
        ]  # fmt: skip
    return found


@pytest.mark.parametrize("queue", [True, False])
def test_trace_view_of_an_npu(tmp_path: Path, queue: bool) -> None:
    """Tasks are kernels, copies or no work; a collective counts once, whatever repeats it."""
    events = of_npu(2, queue=queue)
    measured = MeasuredTrace(written(tmp_path, events))
    trace = measured.trace
    tasks = [e["args"].get("Task Type") for e in events if e["pid"] == HARDWARE and "args" in e]
    computing, copying = (sum(t in some for t in tasks) for some in (COMPUTES, COPYING))
    assert trace.category(KERNELS).sum() == computing + 2
    assert trace.category(COPIES).sum() == copying
    on_device = trace.category(ON_DEVICE)
    assert set(trace.spans["device"][on_device].tolist()) == {0}
    communicates = trace.named(lambda name: name.startswith("hcom_")) & on_device
    assert set(trace.spans["stream"][on_device & ~communicates].tolist()) == {2}
    assert 2 not in trace.spans["stream"][communicates]
    assert [(s.number, s.begin, s.computing, s.communication) for s in measured.steps] == [
        (step, (EPOCH_US + 3000 * step) * 1000, len(COMPUTES) * 50_125, 250_000)
        for step in range(2)
    ]
    assert trace.category(LAUNCHES).sum() == sum(e.get("pid") == CANN for e in events) - 1
    assert not measured.truncation.sentences()
    assert len(trace.communication) == len(trace.spans["start"])
    assert not in_flight(trace, measured.launches).any()  # no launch of a collective is recorded


def test_processes_keep_their_names_if_a_time_cannot_be_read(tmp_path: Path) -> None:
    """Metadata has no time either; only the event is left out and counted."""
    events = of_npu(1, queue=True)
    computing = MeasuredTrace(written(tmp_path, events)).steps[0].computing
    events.append(span(HARDWARE, 2, "lost", 10, float("nan"), args={"Task Type": "AI_CORE"}))
    measured = MeasuredTrace(written(tmp_path, events))
    assert measured.steps[0].computing == computing
    (said,) = measured.truncation.sentences()
    assert said.startswith("1 event had a time that is missing")


def test_categories_that_the_reader_sets_are_known(tmp_path: Path) -> None:
    """Those of an MTIA's streams, and of CUPTI's counters, are no unknown ones."""
    rows = {"dma_request": "mtia_ccp_events", "event_wait": "mtia_ccp_events",
            "sgemm": "cuda_profiler_range"}  # fmt: skip
    events = [
        {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": 10 * n, "dur": 5}
        for n, (name, kind) in enumerate(rows.items())
    ]
    measured = MeasuredTrace(written(tmp_path, {"traceEvents": events}))
    assert not measured.truncation.sentences()


@pytest.mark.parametrize("queue", [True, False])
def test_work_of_an_npu_belongs_to_its_operator(tmp_path: Path, queue: bool) -> None:
    """By the launch inside it, or by an arrow where another thread launched it."""
    measured = MeasuredTrace(written(tmp_path, of_npu(2, queue=queue)))
    self_ns = {row.name: row.device_self_ns for row in measured.work}
    assert {name: ns for name, ns in self_ns.items() if ns} == {
        f"aten::{task}": 2 * 50_125 for task in (*COMPUTES, *COPYING)
    }
    assert measured.operators.device_unknown == 2 * 250_000


def test_the_legacy_profilers_list(tmp_path: Path) -> None:
    """Its processes tell host and device; its arrows tell who launched a kernel."""
    events: list[Event] = []
    for number, name in enumerate(("aten::mul", "aten::add", "aten::mul")):
        host = {"pid": "CPU functions", "tid": 1, "ts": 1000.5 + 100 * number}
        device = {"pid": "CUDA functions", "tid": 3, "ts": 1030 + 100 * number}
        flow = {"id": number, "cat": "cpu_to_cuda", "args": {}}
        events += [
            {"name": name, "ph": "X", "dur": 40.25, "args": {}, **host},
            {"name": name, "ph": "s", **flow, **host},
            {"name": "kernel", "ph": "f", **flow, **device},
            {"name": "kernel", "ph": "X", "dur": 20.0, "args": {}, **device},
        ]
    measured = MeasuredTrace(written(tmp_path, events))
    spans = [event for event in events if event["ph"] == "X"]
    lengths = measured.trace.spans["length"]
    assert (len(lengths), lengths.sum()) == (6, 1000 * sum(event["dur"] for event in spans))
    found = {row.name: (row.count, row.self_ns, row.device_self_ns) for row in measured.work}
    assert found == {"aten::mul": (2, 80_500, 40_000), "aten::add": (1, 40_250, 20_000)}
    assert [(step.device, step.computing) for step in measured.steps] == [(3, 60_000)]


def test_a_conversion_of_nsys(tmp_path: Path) -> None:
    """Kernels, calls and ranges have a category each. Projections to the device are no work."""
    rows = {"cuda": "Stream 7", "nvtx": "NVTX Thread 9", "cuda_api": "CUDA API Thread 9",
            "nvtx-kernel": "NVTX Kernel Thread 9"}  # fmt: skip
    events = [
        {"name": f"{kind} {n}", "ph": "X", "cat": kind, "ts": 100.0 * n, "dur": 60.0, "tid": row,
         "pid": "Device 1", "args": {}}
        for n in range(4) for kind, row in rows.items()
    ]  # fmt: skip
    measured = MeasuredTrace(written(tmp_path, events))
    (step,) = measured.steps
    assert (step.device, step.computing) == (1, 4 * 60_000)
    assert [kind.name for kind in measured.kinds] == [f"cuda {n}" for n in range(4)]
    assert measured.trace.category(LAUNCHES).sum() == 4
    assert not measured.truncation.sentences()


def test_categories_that_are_unknown_are_named(tmp_path: Path) -> None:
    """With their events and their time, the longest first; others are counted together."""
    counts = {"apple": 3, "": 2, **{f"kind {n}": 1 for n in range(5)}, "cpu_op": 4}
    events = [
        {"ph": "X", "cat": kind, "name": "a", "pid": 1, "tid": 1, "ts": 10 * n, "dur": 1000 * count}
        for kind, count in counts.items() for n in range(count)
    ]  # fmt: skip
    said = MeasuredTrace(written(tmp_path, {"traceEvents": events})).truncation.sentences()
    assert said[-1] == (
        "dynprof does not know these categories of events, so nothing counts their time: "
        "apple (3 events, 9.00 ms), no category (2 events, 4.00 ms), kind 0 (1 event, 1.00 ms), "
        "kind 1 (1 event, 1.00 ms), kind 2 (1 event, 1.00 ms), 2 more (2 events, 2.00 ms)."
    )


def objects(counts: list[int], **members: Any) -> str:
    """Return an object for each stream, as Proton writes them."""
    return "".join(
        json.dumps({"displayTimeUnit": "us", **members, "traceEvents": [
            {"name": f"k{stream}", "cat": "kernel", "ph": "X", "ts": 100.0 * n, "dur": 50.0,
             "tid": stream, "args": {"call_stack": ["ROOT", "]}"]}}
            for n in range(count)
        ]}) + "\n"
        for stream, count in enumerate(counts)
    )  # fmt: skip


@pytest.mark.parametrize("counts", [[4, 4], [0, 3, 0, 0, 2, 0], [0, 0], [40_000, 1, 40_000]])
def test_one_object_for_each_stream(tmp_path: Path, counts: list[int]) -> None:
    """All are read, also if they are empty, or larger than what is read at a time."""
    path = tmp_path / "a.trace.json"
    path.write_text(objects(counts))
    assert path.stat().st_size > CHUNK or sum(counts) < 10
    trace = load_trace(path)
    assert (trace.complete, trace.truncated) == (True, "")
    streams = trace.spans["stream"].tolist()
    assert [streams.count(stream) for stream in range(len(counts))] == counts
    assert trace.spans["length"].sum() == 50_000 * sum(counts)


def test_two_traces_in_one_file_are_refused(tmp_path: Path) -> None:
    """The second one has members of its own, such as its base time."""
    path = tmp_path / "a.trace.json"
    path.write_text(objects([2]) + objects([2], baseTimeNanoseconds=5))
    with pytest.raises(CaptureError, match="holds several traces, one after the other"):
        load_trace(path)


def of_ranks(*pids: str | int) -> list[Event]:
    """Return one step of each process."""
    return [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "pid": pid, "tid": 1,
         "ts": 1000.0 + place, "dur": 500.0}
        for place, pid in enumerate(pids)
    ]  # fmt: skip


def test_ranks_that_another_tool_merged_are_refused(tmp_path: Path) -> None:
    """The message names them, and how to take one out."""
    sglang = written(tmp_path, {"traceEvents": of_ranks("[TP00-DP01] 9", "[TP01-DP01] 9")})
    with pytest.raises(CaptureError, match=r"several ranks: TP00-DP01, TP01-DP01\..*\njq "):
        MeasuredTrace(sglang)
    unnamed = written(tmp_path, {"traceEvents": of_ranks(1009, 2009)})
    with pytest.raises(CaptureError, match="the same step of several processes: 1009, 2009"):
        MeasuredTrace(unnamed)
    one = written(tmp_path, {"traceEvents": of_ranks("[TP00-DP01] 9")})
    assert len(MeasuredTrace(one).steps) == 1


@pytest.mark.parametrize("category", ["cuda_runtime", "cpu_op"])
def test_ranks_whose_processes_have_one_number_are_refused(tmp_path: Path, category: str) -> None:
    """As in containers: each step and each call is there twice, at nearly the same time."""
    name = "External id" if category == "cpu_op" else "correlation"
    rank = [
        event
        for step in range(2)
        for event in (
            span(7, 7, f"ProfilerStep#{step}", 1000 * step, 1000, cat="user_annotation"),
            span(7, 7, "call", 1000 * step + 10, 5, cat=category, args={name: step + 1}),
        )
    ]
    other = [{**event, "ts": float(event["ts"]) + 3} for event in rank]
    assert len(MeasuredTrace(written(tmp_path, {"traceEvents": rank})).marked) == 2
    with pytest.raises(CaptureError, match="steps and calls twice at a time: it merges"):
        MeasuredTrace(written(tmp_path, {"traceEvents": rank + other}))
    # Another profiler marks the steps again: one process, one number for each call.
    marks = [event for event in other if event["cat"] == "user_annotation"]
    assert MeasuredTrace(written(tmp_path, {"traceEvents": rank + marks}))
