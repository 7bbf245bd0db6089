"""Traces of real GPUs: those in ``h100/``, and some of a folder next to the project.

All of a folder where ``DYNPROF_TRACES`` names it, as ``make traces`` does.

``h100/`` was recorded on one NVIDIA H100 80GB (driver for CUDA 13.0, torch 2.11.0+cu130, Python
3.12), all but ``profile`` by dynprof in a running loop:

- ``train``: a transformer under bfloat16 autocast, AdamW with ``foreach``. Each step has copies on
  a side stream from pinned and from pageable memory. It also has ``torch.cuda._sleep``,
  ``.item()`` and a device mark. Level1, shapes, memory, FLOPs; 2 steps.
- ``graph``: a CUDA graph of a network, forward and backward, replayed; its input copied from
  pageable memory. Level1; 4 steps.
- ``ddp_rank0``, ``ddp_rank1``: four linear layers under DistributedDataParallel with gloo, both
  ranks on the one device. Level1, shapes; 3 steps.
- ``compiled``: ``torch.compile`` of a small network, with stacks; 3 steps.
- ``profile``: a transformer layer and AdamW under ``torch.profiler.profile`` itself, with shapes
  and FLOPs, no step marked. ``profile.averages.json.gz`` is what ``key_averages()`` said of it.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

H100 = Path(__file__).parent / "h100"
REAL = Path(os.environ.get("DYNPROF_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
FEW = ("alexnet", "cupti_counters", "mi250", "mtia_inference", "sampled_rank-0", "vllm_decode")
"""Small traces of several vendors and versions: with counters, collectives and graphs."""
TRACES = sorted(
    REAL.glob("*.gz")
    if "DYNPROF_TRACES" in os.environ
    else filter(Path.exists, (REAL / f"{name}.json.gz" for name in FEW))
)
needs_real = pytest.mark.skipif(not TRACES, reason="there is no folder of real GPU traces")
on_opened = pytest.mark.parametrize(
    "path",
    [pytest.param(REAL / f"{name}.json.gz", id=name,
                  marks=[pytest.mark.slow, pytest.mark.skipif(
                      not (REAL / f"{name}.json.gz").exists(),
                      reason="there is no folder of real GPU traces")])
     for name in ("qwen_h100", "vllm_prefill_decode", "sglang_decode")],
)  # fmt: skip
"""Traces that open on work in flight: with that work but not its launch, and without it."""
OURS = [H100 / f"{name}.json.gz" for name in ("train", "graph", "ddp_rank0", "compiled", "profile")]
"""One rank of each window; the other one has the same events."""
on_each = pytest.mark.parametrize(
    "path", [*OURS, *(pytest.param(path, marks=pytest.mark.slow) for path in TRACES)],
    ids=[*(f"h100/{path.name.split('.')[0]}" for path in OURS),
         *(path.name.split(".")[0] for path in TRACES)],
)  # fmt: skip
OWN = re.compile(
    r"(dynprof/(?!cli/|integrations/|marks/annotation\.py|phases\.py|plugin/|steps/)|torch/profiler/)"
)
"""Matches names of profilers' frames, except those through which dynprof calls the job."""
ON_STREAM = "dynprof: device mark"
"""The range in which dynprof sets a mark on a stream; it is not the job's work."""


def read(path: Path, parse_float: Any = float) -> Any:
    """Return what a JSON file holds, zipped or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        return json.load(file, parse_float=parse_float)


def raw_events(path: Path, parse_float: Any = float) -> list[dict[str, Any]]:
    """Return the events of a trace that have a duration, as Python's own reader finds them."""
    found = read(path, parse_float)["traceEvents"]
    return of_mtia(without_device_marks([event for event in found if event.get("ph") == "X"]))


def everything(path: Path) -> list[dict[str, Any]]:
    """Return all events, with ``begin`` and ``end`` in whole ns, ``kind`` and ``thread``."""
    events: list[dict[str, Any]] = of_mtia(without_device_marks(read(path, str)["traceEvents"]))
    for event in events:
        event["begin"] = nanoseconds(event.get("ts", 0))
        event["end"] = event["begin"] + nanoseconds(event.get("dur", 0))
        event["kind"] = str(event.get("cat")).lower()
        event["thread"] = (event.get("pid"), event.get("tid"))
    return events


def copy_name(event: dict[str, Any]) -> str:
    """Return the name that CUDA gives a copy of this direction."""
    return str(event.get("copy") or event["name"])


def of_mtia(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the rows of an MTIA the categories of a GPU; a stream's events are no work."""
    for event in events:
        if event.get("cat") == "mtia_runtime":
            event["cat"] = "cuda_runtime"
        if event.get("cat") == "mtia_ccp_events":
            apart = {"dma_request": "gpu_memcpy", "event_wait": "event", "event_record": "event"}
            event["cat"] = apart.get(event["name"], "kernel")
            event["args"] = {"device": event["pid"], "correlation": None, **event["args"]}
            if event["name"] == "dma_request":
                ends = event["args"]["direction"].split("_TO_")
                event["copy"] = f"Memcpy {ends[0][0]}to{ends[1][0]}"
                event["args"]["bytes"] = int(event["args"]["size"])
    return events


def without_device_marks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events without device marks: neither their ranges nor what was launched there."""
    host = ("user_annotation", "cpu_op", "cuda_runtime", "cuda_driver")
    ranges = [e for e in events if e.get("name") == ON_STREAM and e.get("cat") == host[0]]
    if not ranges:
        return events
    inside = [
        event
        for event in events
        if event.get("cat") in host and any(lies_in(event, outer) for outer in ranges)
    ]
    numbers = {event["args"]["correlation"] for event in inside if event["cat"] in host[2:]}
    places = {id(event) for event in inside}
    return [
        event
        for event in events
        if id(event) not in places
        and not (
            event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
            and event["args"].get("correlation") in numbers
        )
    ]


def whole_span(events: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the start and end of the job in ns, without the end of the recording."""
    jobs = [(nanoseconds(e["ts"]), nanoseconds(e["ts"]) + nanoseconds(e.get("dur", 0)), e)
            for e in events if str(e.get("cat")).lower() != "trace"]  # fmt: skip
    first, last = min(begin for begin, _, _ in jobs), max(end for _, end, _ in jobs)
    ending = [begin for begin, end, event in jobs
              if OWN.match(event["name"]) and end == last and begin > first]  # fmt: skip
    if not ending:
        return first, last
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    ends = [end for begin, end, event in jobs
            if event["cat"] in device
            or (event["cat"] != "python_function" and begin < min(ending))]  # fmt: skip
    return first, max(min(ending), *ends)


def lies_in(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Return whether an event is inside another one, on its thread."""
    if (event["pid"], event["tid"]) != (outer["pid"], outer["tid"]):
        return False
    begin, around = nanoseconds(event["ts"]), nanoseconds(outer["ts"])
    return around <= begin and begin + nanoseconds(event["dur"]) <= around + nanoseconds(
        outer["dur"]
    )


def nanoseconds(text: Any) -> int:
    """Convert microseconds of a trace to whole ns."""
    whole, _, rest = str(text).partition(".")
    return int(whole) * 1000 + int((rest + "000")[:3])
