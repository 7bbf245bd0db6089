"""The critical path of real device traces, next to that of HolisticTraceAnalysis (HTA).

Both agree on the device's part of a path. On the host HTA counts gaps between operators as zero, so
its path is shorter than the step. HTA's path also enters the device at a synchronising call whose
work has already finished.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "hta.version", reason="HolisticTraceAnalysis is not installed; CI compares with it"
)

from hta.trace_analysis import TraceAnalysis

from dynprof.analysis.measures.critical_path import critical_path
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.real_traces import REAL, needs_real

pytestmark = [
    pytest.mark.hta,
    pytest.mark.filterwarnings("ignore"),  # from HTA's use of pandas
    needs_real,
]

MEASURED = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"


def theirs(name: str, label: str, instance: int) -> dict[str, float]:
    """Return the parts of HTA's path, in us."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
        files = {0: str(REAL / f"{name}.json.gz")}
        analysis = TraceAnalysis(trace_files=files, include_last_profiler_step=True)
        graph, done = analysis.critical_path_analysis(0, label, instance)
    assert done
    found = graph.get_critical_path_breakdown().groupby("bound_by").duration.sum()
    return {str(kind): float(time) for kind, time in found.items() if time}


def ours(name: str, label: str, instance: int) -> dict[str, float]:
    """Return the parts of dynprof's path for the same time span, in us."""
    measured = MeasuredTrace(REAL / f"{name}.json.gz")
    trace: Any = measured.trace
    place = np.flatnonzero(trace.named(lambda one: one.startswith(label)))[instance]
    span = (None, int(trace.spans["start"][place]), int(trace.spans["length"][place]))
    found = critical_path(trace, [span], measured.launches, measured.calls)
    assert found is not None
    assert sum(found.parts().values()) == found.length >= span[2]
    return {part: time / 1000 for part, time in found.parts().items() if time}


@pytest.mark.parametrize("instance", [0, 1])
def test_path_of_a_device_bound_step_matches_hta(instance: int) -> None:
    """Kernels are equal. Gaps between them, with launches, agree to a microsecond."""
    own, other = (path("alexnet", MEASURED, instance) for path in (ours, theirs))
    assert own["kernels"] + own["copies"] == other["gpu_compute_bound"]
    delays = own["between kernels"] + own["launches"] + own["unknown wait"]
    overheads = other["gpu_kernel_kernel_overhead"] + other["gpu_kernel_launch_overhead"]
    assert delays == pytest.approx(overheads, abs=1)
    assert other["cpu_bound"] < own["host"] < 1.02 * other["cpu_bound"]


def test_path_of_a_host_bound_step_is_on_the_host() -> None:
    """Nothing waits for the device: the whole path is on the host."""
    assert set(ours("triton_example", "ProfilerStep", 0)) == {"host"}
    assert set(theirs("triton_example", "ProfilerStep", 0)) == {"cpu_bound"}
