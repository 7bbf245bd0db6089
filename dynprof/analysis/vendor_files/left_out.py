"""Which files of a trace are not written, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.timeline.steps import collectives
from dynprof.analysis.reading.events import COPIES, KERNELS, LAUNCHES, ON_DEVICE
from dynprof.analysis.vendor_files.communication import communication_matrix
from dynprof.analysis.vendor_files.stacks import folded
from dynprof.analysis.vendor_files.tables import (
    LEVELLED,
    includes,
    level_of,
    why_not,
    why_not_at,
    without_steps,
)

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

_NO_SHAPES = "no operator with a known formula was recorded with its shapes; set record_shapes"
_NO_COLLECTIVE = "no collective was recorded"
_NO_PEERS = "a trace has the ranks only of sends and receives, and none here has them"
NO_DATABASE = "export_type is text only; add db for it"
NO_TABLES = "export_type is db only; add text for them"
NOT_REQUESTED = (NO_DATABASE, NO_TABLES)
"""Reasons that do not hold if a command requests other formats than the config."""
_TRUNCATED = "the file ends before any step is complete"


def left_out(measured: MeasuredTrace) -> dict[str, str]:
    """Return the reasons why files are not written, by file."""
    asked = _experimental(measured).get("export_type") or ("text",)  # a list, or one of them
    alone = not includes(measured, "Level0")
    reasons = {
        "msprof_tx.csv": (len(measured.marks.span), _no_marks(measured)),
        "data_preprocess.csv": (False, "only an NPU has AI CPUs"),
        "l2_cache.csv": (
            False,
            "a trace of torch has no cache hits; only an NPU's does",
        ),
        "ascend_pytorch_profiler.db": ("db" in asked, NO_DATABASE),
        "analysis.db": ("db" in asked or alone, NO_DATABASE),
        "tables in csv and json": ("text" in asked, NO_TABLES),
        "profiler_metadata.json": (len(measured.metadata), "the config has no metadata"),
        "profiler_info.json": (measured.manifest is not None, "the trace has no manifest"),
    }
    levels = {name: why_not(measured, name) for name in LEVELLED}
    unrecorded = {name: why for name, (there, why) in _recorded(measured).items() if not there}
    if alone:  # below Level0 no other setting adds what marks lack
        unrecorded = {
            name: levels.get(name) or why_not_at(measured, "Level0") for name in unrecorded
        }
    left = {name: why for name, (there, why) in reasons.items() if not there}
    return {name: why for name, why in levels.items() if why} | unrecorded | left


def _recorded(measured: MeasuredTrace) -> dict[str, tuple[Any, str]]:
    """Return, by file, whether the trace has its content, and the reason if it does not."""
    trace, truncated = measured.trace, measured.truncation.incomplete
    device, sent = trace.category(ON_DEVICE).any(), len(collectives(trace))
    operators = len(without_steps(measured))
    path = measured.critical_path
    return {
        "operator_details.csv": (operators, "no operator was recorded"),
        "kernel_details.csv": (device, _TRUNCATED if truncated else "no device worked"),
        "op_statistic.csv": (measured.kinds, "no operator was recorded, and no device worked"),
        "step_trace_time.csv": (not truncated, _TRUNCATED),
        "memory_record.csv, operator_memory.csv, memory_timeline": (
            len(trace.memory["time"]),
            "no allocation was recorded; set profile_memory",
        ),
        "communication.json": (sent, _NO_COLLECTIVE),
        "collective_bandwidth.csv": (sent, _NO_COLLECTIVE),
        "communication_matrix.json": (
            sent and communication_matrix(measured),
            _NO_PEERS if sent else _NO_COLLECTIVE,
        ),
        "api_statistic.csv": (
            trace.category(LAUNCHES).any(),
            "no call of a device's runtime was recorded",
        ),
        "module_details.csv": (
            len(measured.modules.rows),
            "no module and no label was recorded; set with_stack and with_modules",
        ),
        "operator_flops.csv": (len(measured.operator_work), _NO_SHAPES),
        "backward_operators.csv": (len(measured.passes), "no backward pass was recorded"),
        "operator_counters.csv": (trace.counters, "no counter of CUPTI was recorded"),
        "kernel_categories.csv, operator_kernels.csv": (device, "no device worked"),
        "iterations.csv": (
            measured.iterations,
            "no iteration of an inference server was recorded, or steps are marked",
        ),
        "kernel_shapes.csv": (trace.category(KERNELS).any(), "no kernel was recorded"),
        "kernel_sequences.csv": (
            measured.sequences,
            "no elementwise kernels directly follow one another",
        ),
        "copy_bandwidth.csv": (trace.category(COPIES).any(), "no device copied"),
        "critical_path.csv": (path, _TRUNCATED if truncated else "the steps take no time"),
        "critical_path_what_if.csv": (
            path and path.what_ifs,
            "no device worked on the critical path, and no data was loaded on it",
        ),
        "stacks.folded, stacks.speedscope.json": (
            next(folded(measured), None),
            "no operator took a microsecond or more",
        ),
    }


def _no_marks(measured: MeasuredTrace) -> str:
    """Return why there are no marks, by whether the config requested them."""
    if measured.manifest is None:  # the request is unknown
        return "nothing was marked"
    alone = level_of(measured) == "Level_none"
    if not (alone or _requests(measured, "mstx") or _requests(measured, "msprof_tx")):
        return "nothing was marked; set mstx"
    if _requests(measured, "mstx_domain_include") or _requests(measured, "mstx_domain_exclude"):
        return "nothing was marked in the requested domains"
    return "nothing was marked"


def _requests(measured: MeasuredTrace, setting: str) -> bool:
    """Return whether a trace's config has a setting on; True if there is no config."""
    if measured.manifest is None:
        return True
    return bool(_experimental(measured).get(setting))


def _experimental(measured: MeasuredTrace) -> dict[str, Any]:
    config = measured.manifest.request.config if measured.manifest else {}
    inner = config.get("experimental_config")
    return inner if isinstance(inner, dict) else {}
