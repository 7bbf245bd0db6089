"""A profiler's own work in a recorded step is separated from the job's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis import load
from dynprof.analysis.findings.rules import findings
from dynprof.analysis.measures.difference import PART, PHASE, MeanStep, growths
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.breakdown import RECORDING
from dynprof.analysis.measures.timeline.overhead import DYNPROF, TORCH, profiler_of
from dynprof.analysis.report.contents import contents
from dynprof.analysis.vendor_files.stacks import folded

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]

OWN = [
    ("dynprof/runtime/error_boundary.py(48): attempt", DYNPROF),
    ("dynprof/windows/loop.py(98): <lambda>", DYNPROF),
    ("dynprof/marks/record_functions.py(71): begin", DYNPROF),
    ("/venv/lib/python3.11/site-packages/dynprof/dynamic_profile.py(42): step", DYNPROF),
    ("step (/venv/lib/site-packages/dynprof/dynamic_profile.py:42)", DYNPROF),
    ("torch/profiler/profiler.py(800): step", TORCH),
    ("/site-packages/torch/profiler/profiler.py(700): _transit_action", TORCH),
]
JOBS = [
    "dynprof/cli/demo/torch_job.py(9): train",
    "dynprof/train.py(3): main",
    "my_dynprof/wall.py(3): main",
    "dynprof.py(3): step",
    "runtime/error_boundary.py(3): attempt",
    "torch/autograd/profiler.py(918): __enter__",
    "/home/me/dynprof/experiment/train.py(8): step",
    "dynprof/steps/sources.py(80): counted",
    "dynprof/plugin/torch_patches.py(60): marked",
    "dynprof/marks/annotation.py(41): call",
    "/venv/site-packages/dynprof/phases.py(40): iterate",
    "aten::dynprof",
]


@pytest.mark.parametrize(("name", "owner"), [*OWN, *((name, "") for name in JOBS)])
def test_frames_of_the_profiler_are_recognised(name: str, owner: str) -> None:
    """The package's own modules decide; a job in a folder with that name stays a job."""
    assert profiler_of(name) == owner


def job(frame: str, *, device: bool) -> list[Event]:
    """Return four steps of 1 ms: 300 us of operators, then a frame of 500 us with a nested one."""
    found: list[Event] = []
    for step in range(4):
        begin = 1000 * step
        found += [
            {"name": f"ProfilerStep#{step}", "cat": "user_annotation", "ts": begin, "dur": 1000},
            {"name": "aten::mm", "cat": "cpu_op", "ts": begin + 5, "dur": 300},
            {"name": frame, "cat": "python_function", "ts": begin + 400, "dur": 500},
            {"name": "time.py(1): now", "cat": "python_function", "ts": begin + 500, "dur": 100},
        ]
        if device:
            at = {"device": 0, "stream": 7, "correlation": step + 1}
            found += [
                {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": begin + 6, "dur": 2,
                 "args": {"correlation": step + 1}},
                {"name": "gemm", "cat": "kernel", "pid": 0, "tid": 7, "ts": begin + 10, "dur": 390,
                 "args": at},
            ]  # fmt: skip
    # dynprof's own threads wait all the time; they do not belong to the job.
    found.append({"name": OWN[0][0], "cat": "python_function", "tid": 5, "ts": 0, "dur": 4000})
    return found


def measured(folder: Path, frame: str, *, device: bool) -> MeasuredTrace:
    """Return the measurements of such a job."""
    return write(folder, job(frame, device=device))


def write(folder: Path, made: list[Event]) -> MeasuredTrace:
    """Write events, which may lack what all have in common; return their measurements."""
    folder.mkdir(exist_ok=True)
    events = [{"ph": "X", "pid": 1, "tid": 1, **event} for event in made]
    path = folder / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    return MeasuredTrace(path)


IDLE = {True: "The device waits for the host", False: "Python between the operators"}


@pytest.mark.parametrize("device", [True, False])
def test_findings_leave_out_the_profilers_overhead(tmp_path: Path, device: bool) -> None:
    """The same gap is charged to the job if the job causes it, but not if the profiler does.

    The frame takes half of the step. Other idle time is found in both cases.
    """
    shares = []
    for frame in (OWN[1][0], JOBS[1]):
        found = measured(tmp_path, frame, device=device)
        (share,) = (f.share for f in findings(found, found.breakdown) if f.title == IDLE[device])
        shares.append(share)
        own = found.breakdown.time_in(found.breakdown.causes[RECORDING])
        assert own == (500_000 if frame == OWN[1][0] else 0)
    assert shares[1] - shares[0] == pytest.approx(0.5)
    last = 0.1 / 4  # after the last frame no launch follows
    others = 1 - 0.39 - 0.5 - last if device else 1 - 0.3 - 0.5
    assert shares[0] == pytest.approx(others, abs=0.01)


def test_the_verdict_names_it(tmp_path: Path) -> None:
    """The overhead is next to Python or waiting; together they are the time outside operators."""
    assert (
        "CPU operators run for 30% of it, and 20% is Python or waiting; "
        "50% is the profiler itself." in str(measured(tmp_path, OWN[0][0], device=False).breakdown)
    )
    said = str(measured(tmp_path, JOBS[0], device=False).breakdown)
    assert "70% is Python or waiting." in said


@pytest.mark.parametrize("device", [True, False])
def test_steps_are_compared_without_it(tmp_path: Path, device: bool) -> None:
    """The steps of the second window are 40% longer, all of it in the profiler itself.

    The median without it is equal, so ``--fail-over`` passes; a row of its own has the time.
    """
    found = []
    for place, longer in enumerate((0, 400)):
        events = job(OWN[1][0], device=device)
        for event in events:
            step = 0 if event.get("tid") == 5 else int(event["ts"]) // 1000
            event["ts"] += step * longer
            event["dur"] += longer * (event["name"] == OWN[1][0] or "Step#" in event["name"])
        found.append(write(tmp_path / str(place), events))
    one, other = (MeanStep.of(each) for each in found)
    assert one.lengths == other.lengths == (500_000,) * 4
    assert (one.recording_ns, other.recording_ns) == (500_000, 900_000)
    changed = {
        (row.by, row.name): row.cost_ns for by in (PART, PHASE) for row in growths(one, other, by)
    }
    assert changed == {(PART, "recording"): 400_000, (PHASE, "recording"): 400_000}
    rows = load(found[1].path).query("SELECT took_ns, recording_ns FROM steps").rows()
    assert list(rows) == [(1_400_000, 900_000)] * 4


def test_the_page_shows_it(tmp_path: Path) -> None:
    """Bars of the steps and of their phases have it, and the timeline has its moments."""
    page = contents(measured(tmp_path, OWN[1][0], device=False))
    for row in page["steps"]["rows"]:
        assert row["parts"]["recording"] == row["phases"]["recording"] == 0.5
        assert sum(row["phases"].values()) == sum(row["parts"].values()) == row["length"]
    assert "recording" in page["timeline"]["names"]


@pytest.mark.parametrize(("name", "owner"), OWN)
def test_the_flame_graph_has_one_node(tmp_path: Path, name: str, owner: str) -> None:
    """The node has the profiler's name and all nested frames, and no time is lost."""
    found = measured(tmp_path, name, device=False)
    lines = dict(folded(found))
    assert lines == {"aten::mm": 4 * 300, owner: 4 * 500}
    flame = contents(found)["flame"]
    names = [flame["names"][place] for place in flame["name"]]
    assert sorted(names) == sorted(["aten::mm", owner])
    assert flame["all"] == 4 * 800
    other = dict(folded(measured(tmp_path, JOBS[0], device=False)))
    assert other[f"{JOBS[0].replace(' ', '_')};time.py(1):_now"] == 4 * 100


def test_the_end_of_a_recording_is_not_the_jobs(tmp_path: Path) -> None:
    """Without marked steps, neither Kineto's own span nor a call open at the end counts."""
    stops, late = {"cat": "python_function", "ts": 400, "dur": 4600}, {"ts": 0, "dur": 5000}
    events: list[Event] = [
        {"name": "PyTorch Profiler (0)", "cat": "Trace", "pid": "Spans", "ts": -90, "dur": 6000},
        {"name": "train.py(3): <module>", "cat": "python_function", **late},
        {"name": "aten::mm", "cat": "cpu_op", "ts": 5, "dur": 300},
        {"name": "dynprof/profiler/kineto_profile.py(105): __exit__", **stops},
        {"name": "<built-in function setattr>", **stops},
        {"name": "cudaDeviceSynchronize", "cat": "cuda_runtime", "ts": 4900, "dur": 50},
    ]
    kernel = {"name": "gemm", "cat": "kernel", "pid": 0, "ts": 350, "dur": 250,
              "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip
    path = tmp_path / "a.trace.json"
    for more, length in (([], 400_000), ([kernel], 600_000)):
        found = [{"ph": "X", "pid": 1, "tid": 1, **event} for event in [*events, *more]]
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": found}))
        assert MeasuredTrace(path).marked == [(None, 0, length)]
