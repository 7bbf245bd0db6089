"""Devices of all vendors are recognised, whatever names a version of Kineto uses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.findings.rules import findings
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.reading import events as reading_events
from dynprof.analysis.reading.events import KERNELS, LAUNCHES, ON_DEVICE
from dynprof.analysis.reading.trace import load_trace
from tests.real_traces import REAL, needs_real, on_each, raw_events

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]

MAKERS = {
    "NVIDIA, torch 1.8": ("Operator", "Runtime", "Kernel", {"device": 3, "stream": 7}),
    "NVIDIA": ("cpu_op", "cuda_runtime", "kernel", {"device": 3, "stream": 7}),
    "NVIDIA, Triton": ("cpu_op", "cuda_driver", "kernel", {"device": 3, "stream": 7}),
    "AMD": ("cpu_op", "cuda_runtime", "kernel", {"device": 3, "stream": 7}),
    "Intel": ("cpu_op", "xpu_runtime", "kernel", {"device": 3, "sycl queue": 7}),
    "Intel, driver": ("cpu_op", "xpu_driver", "kernel", {"device": 3, "sycl queue": 7}),
    "Meta": ("cpu_op", "mtia_runtime", "mtia_ccp_events", {}),
    "Habana": ("cpu_op", "privateuse1_runtime", "hpu_op", {}),
    "others": ("cpu_op", "privateuse1_runtime", "privateuse1_kernel", {}),
    "others, driver": ("cpu_op", "privateuse1_driver", "privateuse1_kernel", {}),
}
makers = pytest.mark.parametrize("maker", MAKERS)


def job(maker: str) -> list[Event]:
    """Return two steps, in each of which an operator launches a kernel of 400 us."""
    operator, call, kernel, placed = MAKERS[maker]
    external = "external id" if maker.endswith("1.8") else "External id"
    shapes = "Input dims" if maker.endswith("1.8") else "Input Dims"
    at = {"stream": "0x0", "grid": [3, 1, 1]} if maker == "AMD" else {}
    label = "Operator" if maker.endswith("1.8") else "user_annotation"
    host = {"ph": "X", "pid": 99, "tid": "3004819264" if maker.endswith("1.8") else 99}
    device = {"ph": "X", "pid": 3, "tid": "stream 7" if maker.endswith("1.8") else 7}
    found = []
    for step in range(2):
        begin, number = 1000 * step, step + 1
        found += [
            {**host, "cat": label, "name": f"ProfilerStep#{step}", "ts": begin, "dur": 900},
            {**host, "cat": operator, "name": "aten::mm", "ts": begin + 10, "dur": 50,
             "args": {"External id": number, shapes: [[2, 3], [3, 2]]}},
            {**host, "cat": call, "name": "launch", "ts": begin + 20, "dur": 10,
             "args": {external: number, "correlation": 70 + number, **at}},
            {**device, "cat": kernel, "name": "gemm", "ts": begin + 100, "dur": 400,
             "args": {external: number, "correlation": 70 + number, **placed}},
        ]  # fmt: skip
    return found


def written(folder: Path, events: list[Event], **members: Any) -> Path:
    """Write a trace."""
    path = folder / "a.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, **members, "traceEvents": events}))
    return path


@makers
def test_devices_of_all_vendors_are_recognised(tmp_path: Path, maker: str) -> None:
    """Kernels, launches, steps and place are known, and the owner of its time."""
    measured = MeasuredTrace(written(tmp_path, job(maker)))
    trace = measured.trace
    assert trace.category(LAUNCHES).sum() == trace.category(KERNELS).sum() == 2
    assert (measured.launches.call >= 0).all()
    kernels = trace.category(KERNELS)
    assert set(trace.spans["device"][kernels].tolist()) == {3}
    assert set(trace.spans["stream"][kernels].tolist()) == {7}
    assert [(s.device, s.number, s.computing) for s in measured.steps] == [
        (3, 0, 400_000),
        (3, 1, 400_000),
    ]
    mm = next(row for row in measured.work if row.name == "aten::mm")
    assert (mm.count, mm.device_self_ns) == (2, 800_000)
    assert "The device computes for 44% of it" in str(measured.breakdown)
    assert "No step is marked" not in str(measured.breakdown)
    assert [f.title for f in findings(measured, measured.breakdown)]


@makers
def test_without_the_launch_the_id_names_the_operator(tmp_path: Path, maker: str) -> None:
    """Any spelling works; a number that no operator has gives no owner."""
    events = [e for e in job(maker) if e["name"] != "launch"]
    measured = MeasuredTrace(written(tmp_path, events))
    mm = next(row for row in measured.work if row.name == "aten::mm")
    assert (mm.device_self_ns, measured.operators.device_unknown) == (800_000, 0)
    for event in events:
        if event["name"] == "gemm":
            event["args"] = {n: 55 if "id" in n else v for n, v in event["args"].items()}
    measured = MeasuredTrace(written(tmp_path, events))
    assert measured.operators.device_unknown == 800_000


def test_grids_of_rocm(tmp_path: Path) -> None:
    """ROCm has them in the launch."""
    trace = load_trace(written(tmp_path, job("AMD")))
    known = [trace.tables["details"][i].grid for i in trace.spans["details"].tolist()]
    assert known.count(b"[3, 1, 1]") == trace.category(LAUNCHES).sum() == 2


def test_shapes_of_torch_1_8(tmp_path: Path) -> None:
    """Version 1.8 has them under another name."""
    trace = load_trace(written(tmp_path, job("NVIDIA, torch 1.8")))
    assert b"[[2, 3], [3, 2]]" in {shapes for shapes, *_ in trace.tables["dims"]}


def test_devices_with_names_instead_of_numbers(tmp_path: Path) -> None:
    """Two devices stay two, also if neither they nor their streams have a number."""
    events = [{**e, "args": {}} for e in job("Meta") if e["name"] == "gemm"]
    events += [{**e, "pid": "accelerator", "tid": "queue b"} for e in events]
    events += [{**e, "pid": "MTIA 12", "tid": "queue c"} for e in events[:2]]
    trace = load_trace(written(tmp_path, events))
    spans = trace.spans
    places = set(zip(spans["device"].tolist(), spans["stream"].tolist(), strict=True))
    assert len(places) == 3
    assert {device for device, _ in places} >= {3, 12}
    assert min(min(place) for place in places) >= 0


def test_one_odd_event_leaves_the_others_exact(tmp_path: Path) -> None:
    """Absolute times keep their nanoseconds; only the odd argument is left out."""
    path = tmp_path / "a.trace.json"
    event = '{"ph": "X", "name": "%s", "cat": "kernel", "ts": 1735632360123456.789, "dur": 1.001, '
    odd = event % "odd" + '"args": {"device": {}, "stream": 7, "est. achieved occupancy %": 33.5}}'
    even = event % "even" + '"args": {"device": 2, "stream": 7}}'
    path.write_text(f'{{"traceEvents": [{odd}, {even}]}}')
    trace = load_trace(path)
    assert trace.spans["start"].tolist() == [1735632360123456789] * 2
    assert trace.spans["length"].tolist() == [1001, 1001]
    assert trace.spans["stream"].tolist() == [7, 7]


def test_calls_of_rocm_need_no_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is an address does not need the slow reader."""
    slow: list[Any] = []
    monkeypatch.setattr(reading_events, "_lenient", lambda event, _: slow.append(event))
    chunk = ",".join(json.dumps(event) for event in job("AMD")).encode()
    assert len(reading_events.decode(chunk, reading_events.Event)) == len(job("AMD"))
    assert not slow


@on_each
def test_real_traces_have_their_devices(path: Path) -> None:
    """Events, places and steps are those of the file."""
    trace, events = load_trace(path), raw_events(path)
    work = [e for e in events if e["cat"].lower() in ON_DEVICE]
    chosen = trace.category(ON_DEVICE)
    ours = zip(
        *(trace.spans[name][chosen].tolist() for name in ("start", "device", "stream")), strict=True
    )
    theirs = ((e["ts"] * 1000, e["args"]["device"], e["args"]["stream"]) for e in work)
    for mine, other in zip(sorted(ours), sorted(theirs), strict=True):
        assert mine == pytest.approx(other, rel=0, abs=1 if mine[0] < 1 << 53 else 500)
    labels = ("ProfilerStep#", "execute_", "step[")
    steps = {e["name"] for e in events if e["name"].startswith(labels)}
    said = str(MeasuredTrace(path).breakdown)
    assert ("No step is marked" in said) == (not steps)


@needs_real
def test_traces_of_torch_1_8_are_read() -> None:
    """Steps, operators, launches, shapes and findings are right."""
    measured = MeasuredTrace(REAL / "torch_1.8.json.gz")
    events = raw_events(measured.path)
    assert [number for number, _, _ in measured.marked] == [5, 6, 7, 8, 9, 10]
    calls = {e["args"]["correlation"] for e in events if e["cat"] == "Runtime"}
    launched = [
        e for e in events if e["cat"] in ("Kernel", "Memcpy", "Memset")
        and e["args"]["correlation"] in calls
    ]  # fmt: skip
    assert (measured.launches.call >= 0).sum() == len(launched) > 9000
    shapes = sum(1 for e in events if any(e.get("args", {}).get("Input dims", [])))
    dims = [bool(d.strip(b"[], ")) for d, *_ in measured.trace.tables["dims"]]
    assert sum(dims[i] for i in measured.trace.spans["dims"].tolist()) == shapes > 1000
    assert findings(measured, measured.breakdown)
