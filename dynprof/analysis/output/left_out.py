"""Which files a trace has nothing to say in, and why: they are not written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.steps import collectives
from dynprof.analysis.reading.categories import ON_DEVICE

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

_TORN = "the file ends before it has told all of any step"


def left_out(measured: MeasuredTrace) -> dict[str, str]:
    """Return why files are not written, by what they are."""
    trace, torn = measured.trace, measured.tear.hides
    reasons = {
        "operator_details.csv": (len(measured.operators.span), "no operator was recorded"),
        "kernel_details.csv": (
            trace.category(ON_DEVICE).any(),
            _TORN if torn else "no device worked",
        ),
        "step_trace_time.csv": (not torn, _TORN),
        "memory_record.csv, operator_memory.csv, memory_timeline": (
            len(trace.memory["time"]),
            "no allocation was recorded; profile_memory does",
        ),
        "communication.json": (len(collectives(trace)), "no collective was recorded"),
        "profiler_metadata.json": (len(measured.metadata), "the config has no metadata"),
        "profiler_info": (measured.manifest is not None, "no manifest lies beside the trace"),
    }
    return {name: why for name, (there, why) in reasons.items() if not there}
