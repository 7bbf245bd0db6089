"""Real traces of devices, each read by HolisticTraceAnalysis (HTA) and by dynprof.

HTA's rounding to whole microseconds is off. The remaining resolution is that of a float with
absolute microseconds.
"""

from __future__ import annotations

from typing import Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.real_traces import H100, REAL, needs_real

NAMES = ("a100_control", "nccl_data", "sampled_rank-0", "sampled_rank-1")
"""Without v100_test: HTA leaves out 614 of its kernels, whose launch is not in the trace."""
TRACES = [
    H100 / "profile.json.gz",
    *(pytest.param(REAL / f"{name}.json.gz", id=name, marks=needs_real) for name in NAMES),
]
"""One of our traces.

HTA omits launches by ``cuLaunchKernel`` and graphs, and counts CUPTI's synchronisations as work.
"""


@pytest.fixture(scope="module", params=TRACES)
def both(request: pytest.FixtureRequest) -> tuple[MeasuredTrace, Any]:
    """Read a trace with HTA and with dynprof."""
    from hta.trace_analysis import TraceAnalysis

    path = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
        analysis = TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)
    return MeasuredTrace(path), analysis
