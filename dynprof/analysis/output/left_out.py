"""Which files a trace has nothing to say in, and why: they are not written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.steps import collectives
from dynprof.analysis.reading.categories import COPIES, ON_DEVICE

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace


def left_out(measured: MeasuredTrace) -> dict[str, str]:
    """Return why files are not written, by what they are."""
    trace = measured.trace
    reasons = {
        "operator_details.csv": (len(measured.operators.span), "no operator was recorded"),
        "kernel_details.csv": (trace.category(ON_DEVICE).any(), "no device worked"),
        "memory_record.csv, operator_memory.csv, memory_timeline": (
            len(trace.memory["time"]),
            "no allocation was recorded; profile_memory does",
        ),
        "communication.json, collective_bandwidth.csv": (
            len(collectives(trace)),
            "no collective was recorded",
        ),
        "copy_bandwidth.csv": (trace.category(COPIES).any(), "no device copied"),
        "profiler_metadata.json": (len(measured.metadata), "the config has no metadata"),
        "profiler_info": (measured.manifest is not None, "no manifest lies beside the trace"),
    }
    return {name: why for name, (there, why) in reasons.items() if not there}
