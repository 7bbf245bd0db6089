"""Kernels that receive: known from Kineto or from their callers, otherwise unknown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.launches import UNKNOWN as NOBODY
from dynprof.analysis.vendor_files.tables import operator_tables
from tests.real_traces import on_each, raw_events

if TYPE_CHECKING:
    from pathlib import Path

SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
STEP = {"cat": "user_annotation", "name": "ProfilerStep#3", "ts": 0, "dur": 1000}


def kernel(name: str, at: float, dur: float, number: int, **told: Any) -> dict[str, Any]:
    """Return a kernel of stream 7."""
    args = {"device": 0, "stream": 7, "correlation": number, **told}
    return {"cat": "kernel", "name": name, "tid": 7, "ts": at, "dur": dur, "args": args}


def launch(at: float, number: int) -> dict[str, Any]:
    """Return a launch on the host."""
    args = {"correlation": number}
    return {"cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": at, "dur": 1, "args": args}


def around(name: str, at: float, category: str = "cpu_op") -> dict[str, Any]:
    """Return an operator or label around a launch."""
    return {"cat": category, "name": name, "ts": at, "dur": 10}


def written(path: Path, events: list[dict[str, Any]]) -> MeasuredTrace:
    """Return a trace of these events, read."""
    whole = [{"ph": "X", "pid": 9, "tid": 1, **event} for event in [STEP, *events]]
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": whole}))
    return MeasuredTrace(path)


def row(measured: MeasuredTrace) -> dict[str, str]:
    """Return the one row of step_trace_time.csv."""
    header, rows = operator_tables(measured)["step_trace_time.csv"]
    (found,) = rows
    return dict(zip(header, found, strict=True))


ADD = kernel("add", 100, 50, 9)


@pytest.mark.parametrize(
    "events",
    [
        [kernel(SENDRECV, 200, 30, 1, **{"Collective name": "recv"})],
        [kernel(SENDRECV, 200, 30, 1), launch(15, 1), around("c10d::recv_", 10)],
        [kernel(SENDRECV, 200, 30, 1), launch(15, 1), around("nccl:recv 1<-0", 10)],
        [kernel(SENDRECV, 200, 30, 1), launch(15, 1), around("record_param_comms", 14),
         around("nccl:recv 1<-0", 12, "user_annotation"), around("c10d::recv_", 10)],
        [kernel("hcom_receive__123_0_1", 200, 30, 1)],
        [kernel(SENDRECV, 200, 30, 1), launch(15, 1), around("nccl:recv 1<-0", 10),
         kernel(SENDRECV, 210, 20, 2), launch(18, 2)],
    ],
)  # fmt: skip
def test_time_of_receiving_is_a_bubble(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    """As the vendor defines it: neither in the stage, nor in communication without receiving."""
    found = row(written(tmp_path / "a.trace.json", [launch(5, 9), ADD, *events]))
    assert found["Bubble"] == "30.000"
    assert found["Communication(Not Overlapped)"] == "30.000"
    assert found["Communication(Not Overlapped and Exclude Receive)"] == "0.000"
    assert found["Stage"] == "100.000"
    assert found["Free"] == "50.000"


@pytest.mark.parametrize(
    "events",
    [
        [kernel(SENDRECV, 200, 30, 1, **{"Collective name": "send"})],
        [kernel(SENDRECV, 200, 30, 1, **{"Collective name": "all_to_allv"})],
        [kernel(SENDRECV, 200, 30, 1), launch(15, 1), around("c10d::send", 10)],
        [kernel(SENDRECV, 200, 30, 1), launch(15, 1), around("nccl:all_to_all", 10)],
        [kernel(SENDRECV, 200, 30, 1), launch(15, 1), around("nccl:send 0->1", 12),
         around("c10d::recv_", 10)],
        [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200, 30, 1)],
        [kernel("hcom_batchSendRecv__1", 200, 30, 1)],
    ],
)  # fmt: skip
def test_similar_kernels_that_do_not_receive(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    """Sends and all-to-all run a kernel of the same name; the innermost caller decides."""
    found = row(written(tmp_path / "a.trace.json", [launch(5, 9), ADD, *events]))
    assert found["Bubble"] == "0.000"
    assert found["Communication(Not Overlapped and Exclude Receive)"] == "30.000"
    assert found["Stage"] == "130.000"


def test_a_kernel_without_a_caller_stays_unknown(tmp_path: Path) -> None:
    """A send or receive kernel without a recorded caller stays unknown."""
    events = [launch(5, 9), ADD, kernel(SENDRECV, 200, 30, 1), launch(15, 1)]
    found = row(written(tmp_path / "a.trace.json", events))
    names = ("Bubble", "Communication(Not Overlapped and Exclude Receive)", "Stage")
    assert [found[name] for name in names] == ["N/A"] * 3
    assert found["Communication"] == "30.000"


def test_a_device_alone_is_measured(tmp_path: Path) -> None:
    """The trace has no operator or label, as when only a device's activities were recorded."""
    events = [{"ph": "X", "pid": 9, "tid": 1, **event} for event in (launch(5, 9), ADD)]
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    measured = MeasuredTrace(path)
    assert measured.operators.device_unknown == 50_000
    assert [step.receiving for step in measured.steps] == [0]


def test_receives_of_gloo_are_counted_on_the_host(tmp_path: Path) -> None:
    """The spans of gloo are labels; a span that exceeds the step is cut there."""
    spans = [around("gloo:recv", 100, "user_annotation"), around("gloo:send", 200)]
    late = {**around("gloo:recv", 995, "user_annotation")}
    found = row(written(tmp_path / "a.trace.json", [*spans, late, around("aten::add", 50)]))
    assert found["Device_id"] == "host"
    assert found["Bubble"] == "15.000"


def received(path: Path) -> float:
    """Return the us in which kernels in steps received, by plain loops over the raw events."""
    events = raw_events(path)
    kernels = [e for e in events if str(e["cat"]).lower() == "kernel" and "nccl" in e["name"]]
    calls = {
        e["args"]["correlation"]: e
        for e in events
        if "untime" in str(e.get("cat")) and "correlation" in e.get("args", {})
    }
    asking = [e for e in events if e["name"].startswith(("nccl:", "c10d::"))
              and e["cat"] in ("cpu_op", "user_annotation")]  # fmt: skip
    total = 0.0
    for one in kernels:
        said = one["args"].get("Collective name")
        call = calls.get(one["args"]["correlation"])
        if said is None and "SendRecv" in one["name"] and call is not None:
            here = [e for e in asking if (e["pid"], e["tid"]) == (call["pid"], call["tid"])
                    and e["ts"] <= call["ts"] < e["ts"] + e["dur"]]  # fmt: skip
            said = min(here, key=lambda e: e["dur"])["name"] if here else "unknown"
        total += one["dur"] if said and "recv" in said else 0.0
        assert said != "unknown"
    return total


@on_each
def test_on_real_traces(path: Path) -> None:
    """No real trace receives; their all-to-all kernels are not bubbles, and none is unknown."""
    measured = MeasuredTrace(path)
    launched = {int(w): int(c) for w, c in zip(measured.launches.work, measured.launches.call,
                                               strict=True) if measured.in_steps[w]}  # fmt: skip
    if any(c == NOBODY and "SendRecv" in measured.trace.name(w) for w, c in launched.items()):
        assert any(step.receiving is None for step in measured.steps)
        return
    assert sum(step.receiving or 0 for step in measured.steps) / 1000 == pytest.approx(
        received(path), abs=0.01
    )
    assert all(step.receiving is not None for step in measured.steps)
