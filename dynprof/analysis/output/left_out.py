"""Which files a trace has nothing to say in, and why: they are not written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.steps import collectives
from dynprof.analysis.reading.categories import KERNELS, ON_DEVICE

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

_WITHOUT_SHAPES = (
    "no operator with a known formula was recorded with its shapes; record_shapes does"
)


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
        "communication.json": (len(collectives(trace)), "no collective was recorded"),
        "module_details.csv": (
            len(measured.modules.rows),
            "no module and no label was recorded; with_stack and with_modules do",
        ),
        "operator_flops.csv": (len(measured.works), _WITHOUT_SHAPES),
        "kernel_shapes.csv": (trace.category(KERNELS).any(), "no kernel was recorded"),
        "profiler_metadata.json": (len(measured.metadata), "the config has no metadata"),
        "profiler_info": (measured.manifest is not None, "no manifest lies beside the trace"),
    }
    return {name: why for name, (there, why) in reasons.items() if not there}
