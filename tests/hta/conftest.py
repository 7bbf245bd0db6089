"""Each real trace of a device read twice: with the real HolisticTraceAnalysis, and by dynprof.

HTA's rounding to whole microseconds is off; what remains is the resolution of a float where a
trace has absolute microseconds.
"""

from __future__ import annotations

from typing import Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.real_traces import H100, REAL, needs_real

NAMES = ("a100_control", "nccl_data", "sampled_rank-0", "sampled_rank-1")
"""Not v100_test: HTA leaves out 614 of its kernels, whose launch is not in the trace."""
TRACES = [
    H100 / "profile.json.gz",
    *(pytest.param(REAL / f"{name}.json.gz", id=name, marks=needs_real) for name in NAMES),
]
"""Of ours one: HTA leaves out what ``cuLaunchKernel`` and graphs launched, and takes CUPTI's
synchronisations for work.
"""


@pytest.fixture(scope="module", params=TRACES)
def both(request: pytest.FixtureRequest) -> tuple[MeasuredTrace, Any]:
    """Read a trace with both."""
    from hta.trace_analysis import TraceAnalysis

    path = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
        analysis = TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)
    return MeasuredTrace(path), analysis
