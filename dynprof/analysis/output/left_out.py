"""Which files a trace has nothing to say in, and why: they are not written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.timeline.steps import collectives
from dynprof.analysis.output.communication import communication_matrix
from dynprof.analysis.output.levels import LEVELLED, level_of, why_not
from dynprof.analysis.reading.categories import COPIES, KERNELS, LAUNCHES, ON_DEVICE

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

_WITHOUT_SHAPES = (
    "no operator with a known formula was recorded with its shapes; record_shapes does"
)
_NOT_SENT = "no collective was recorded"
_NO_PEERS = "only of sends and receives a trace tells between which ranks, and none has that"
NO_DATABASE = "export_type asks for text alone; with db it is made"
NO_TABLES = "export_type asks for db alone; with text they are made"
NOT_ASKED_FOR = (NO_DATABASE, NO_TABLES)
"""Not so where a command asks for other forms than the config."""
_TORN = "the file ends before it has told all of any step"


def left_out(measured: MeasuredTrace) -> dict[str, str]:
    """Return why files are not written, by what they are."""
    trace, torn = measured.trace, measured.tear.hides
    asked = _experimental(measured).get("export_type") or ("text",)  # a list, or one of them
    device, sent = trace.category(ON_DEVICE).any(), len(collectives(trace))
    reasons = {
        "operator_details.csv": (len(measured.operators.span), "no operator was recorded"),
        "kernel_details.csv": (device, _TORN if torn else "no device worked"),
        "step_trace_time.csv": (not torn, _TORN),
        "memory_record.csv, operator_memory.csv, memory_timeline": (
            len(trace.memory["time"]),
            "no allocation was recorded; profile_memory does",
        ),
        "communication.json": (sent, _NOT_SENT),
        "collective_bandwidth.csv": (sent, _NOT_SENT),
        "communication_matrix.json": (
            sent and communication_matrix(measured),
            _NO_PEERS if sent else _NOT_SENT,
        ),
        "api_statistic.csv": (
            trace.category(LAUNCHES).any(),
            "no call of a device's runtime was recorded",
        ),
        "msprof_tx.csv": (len(measured.marks.span), _no_marks(measured)),
        "data_preprocess.csv": (False, "only an NPU has AI CPUs"),
        "l2_cache.csv": (
            not _asks(measured, "l2_cache"),
            "a trace of torch does not tell how often caches were hit; only an NPU's does",
        ),
        "module_details.csv": (
            len(measured.modules.rows),
            "no module and no label was recorded; with_stack and with_modules do",
        ),
        "operator_flops.csv": (len(measured.works), _WITHOUT_SHAPES),
        "backward_operators.csv": (len(measured.passes), "no backward pass was recorded"),
        "kernel_shapes.csv": (trace.category(KERNELS).any(), "no kernel was recorded"),
        "copy_bandwidth.csv": (trace.category(COPIES).any(), "no device copied"),
        "ascend_pytorch_profiler.db": ("db" in asked, NO_DATABASE),
        "tables in csv and json": ("text" in asked, NO_TABLES),
        "profiler_metadata.json": (len(measured.metadata), "the config has no metadata"),
        "profiler_info.json": (measured.manifest is not None, "the trace has no manifest"),
    }
    left = {name: why for name, (there, why) in reasons.items() if not there}
    levels = {name: why_not(measured, name) for name in LEVELLED}
    return {name: why for name, why in levels.items() if why} | left


def _no_marks(measured: MeasuredTrace) -> str:
    """Return why there are none, for whoever asked for them and for whoever did not."""
    if measured.manifest is None:  # nobody knows what was asked for
        return "nothing was marked"
    alone = level_of(measured) == "Level_none"
    if not (alone or _asks(measured, "mstx") or _asks(measured, "msprof_tx")):
        return "nothing was marked; mstx does"
    if _asks(measured, "mstx_domain_include") or _asks(measured, "mstx_domain_exclude"):
        return "nothing was marked in the domains that were asked for"
    return "nothing was marked"


def _asks(measured: MeasuredTrace, setting: str) -> bool:
    """Return whether a trace's config asks for something; where there is none, whoever reads."""
    if measured.manifest is None:
        return True
    return bool(_experimental(measured).get(setting))


def _experimental(measured: MeasuredTrace) -> dict[str, Any]:
    config = measured.manifest.request.config if measured.manifest else {}
    inner = config.get("experimental_config")
    return inner if isinstance(inner, dict) else {}
