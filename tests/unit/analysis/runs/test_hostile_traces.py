"""Traces that no profiler writes: all possible output is made, or they are refused."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dynprof.analysis.measures.difference import (
    SUBJECTS,
    MeanStep,
    growths,
    why_not_by,
    why_not_comparable,
)
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.one_trace import write_analysis
from dynprof.errors import CaptureError

ODD: list[Any] = [
    0, -1, 2**31, 2**63 - 1, 2**63, -(2**63), 2**70, 1e300, float("nan"), float("inf"), None, True,
    "x", "12.5", "", [], {}, [1, [2]], {"a": 1},
]  # fmt: skip
NAMES = [
    "aten::mm", "ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#99999999999999999999",
    "ProfilerStep#x", "ncclKernel_AllReduce", "gloo:all_reduce", "[memory]", "dataloader",
    "## backward ##", "Optimizer.step#A", "nn.Module: A_0", "cudaStreamSynchronize", "cudaMalloc",
    "ncclKernel_SendRecv", "c10d::recv_", "hipExtModuleLaunchKernel",
    "x (dynamo_timed)", "Memcpy HtoD (Pageable -> Device)", "", "a;b c\n\t", 'q"uo,te\r\n', "\0<b>",
]  # fmt: skip
CATEGORIES = [
    "cpu_op", "user_annotation", "kernel", "gpu_memcpy", "cuda_runtime", "python_function", "gc",
    "fee", "", "mstx", "cuda_driver",
]  # fmt: skip
small = st.integers(-2, 6)


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return the proper value, and sometimes any other."""
    return st.integers(0, 19).flatmap(lambda dice: good if dice else st.sampled_from(ODD))


ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        **{name: mostly(small) for name in (
            "External id", "Sequence number", "device", "stream", "correlation", "Addr",
            "Device Type", "Device Id",
        )},
        **{name: mostly(st.integers(-100, 10**11)) for name in (
            "Bytes", "Total Allocated", "Total Reserved",
        )},
        "Input Dims": mostly(st.just([[1, 2], []])),
        "Input type": mostly(st.just(["float"])),
        **{name: mostly(st.integers(-1, 10**10)) for name in (
            "bytes", "In msg nelems", "Src Rank", "Dst Rank",
        )},
        **{name: mostly(st.just([4, 2, 1])) for name in ("grid", "block")},
        "Collective name": mostly(st.sampled_from(["send", "recv", "allreduce"])),
        "dtype": mostly(st.just("Float")),
        "domain": mostly(st.just("default")),
        **{name: mostly(st.just("pp")) for name in ("Process Group Name", "Process Group Ranks")},
    },
)  # fmt: skip
EVENTS = st.fixed_dictionaries(
    {
        "ph": mostly(st.sampled_from("XXXXXibe")),
        "id": mostly(small),
        "name": mostly(st.sampled_from(NAMES)),
        "cat": mostly(st.sampled_from(CATEGORIES)),
        "pid": mostly(small),
        "tid": mostly(small),
        "ts": mostly(st.integers(-10, 500) | st.floats(0, 500)),
        "dur": mostly(st.integers(-5, 200) | st.floats(0, 50)),
        "args": mostly(ARGUMENTS),
    }
)
TRACES = st.fixed_dictionaries(
    {"traceEvents": st.lists(mostly(EVENTS), max_size=25)},
    optional={
        "baseTimeNanoseconds": mostly(st.just(10**18)),
        "deviceProperties": mostly(st.just([{"id": 0, "totalGlobalMem": 10**10}, 3, {"id": []}])),
        "distributedInfo": mostly(st.just({"rank": 1}) | st.just({"rank": 2**70})),
        "metadata": mostly(st.just({"a": 1})),
    },
)


EVENT = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 5}


@pytest.mark.slow
@given(trace=TRACES)
@example(trace={"traceEvents": [{**EVENT, "args": {"Input Dims": 7}}]})
@example(trace={"traceEvents": [{**EVENT, "dur": -7}, {**EVENT, "dur": -7}]})
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@pytest.mark.timeout(300)
def test_any_trace_is_analysed_or_refused(trace: dict[str, Any]) -> None:
    """Report, tables, database and differences are made, or one error says why not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.trace.json")
        path.write_text(json.dumps(trace))
        try:
            measured = MeasuredTrace(path)
        except CaptureError:
            return
        made = {found.name for found in write_analysis(measured, ["text", "db"])}
        assert {"report.html", "events.parquet", "steps.parquet"} <= made
        assert any(name.endswith(".db") for name in made)
        step = MeanStep.of(measured)
        assert [growths(step, step, by) for by in SUBJECTS] == [[]] * len(SUBJECTS)
        assert not any(why_not_by(step, step, by) for by in SUBJECTS)
        assert why_not_comparable(step, step) == []
        assert MeanStep.of_ranks([step]) == step
