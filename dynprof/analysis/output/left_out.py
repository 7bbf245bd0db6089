"""Which files a trace has nothing to say in, and why: they are not written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.timeline.steps import collectives
from dynprof.analysis.output.communication import communication_matrix
from dynprof.analysis.output.levels import LEVELLED, includes, level_of, why_not, why_not_at
from dynprof.analysis.output.stacks import folded
from dynprof.analysis.output.tables import without_steps
from dynprof.analysis.reading.categories import COPIES, KERNELS, LAUNCHES, ON_DEVICE

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

_NO_SHAPES = "no operator with a known formula was recorded with its shapes; record_shapes does"
_NO_COLLECTIVE = "no collective was recorded"
_NO_PEERS = "only of sends and receives a trace tells between which ranks, and none has that"
NO_DATABASE = "export_type asks for text alone; with db it is made"
NO_TABLES = "export_type asks for db alone; with text they are made"
NOT_REQUESTED = (NO_DATABASE, NO_TABLES)
"""Not so where a command asks for other forms than the config."""
_TORN = "the file ends before it has told all of any step"


def left_out(measured: MeasuredTrace) -> dict[str, str]:
    """Return why files are not written, by what they are."""
    asked = _experimental(measured).get("export_type") or ("text",)  # a list, or one of them
    alone = not includes(measured, "Level0")
    reasons = {
        "msprof_tx.csv": (len(measured.marks.span), _no_marks(measured)),
        "data_preprocess.csv": (False, "only an NPU has AI CPUs"),
        "l2_cache.csv": (
            False,
            "a trace of torch does not tell how often caches were hit; only an NPU's does",
        ),
        "ascend_pytorch_profiler.db": ("db" in asked, NO_DATABASE),
        "analysis.db": ("db" in asked or alone, NO_DATABASE),
        "tables in csv and json": ("text" in asked, NO_TABLES),
        "profiler_metadata.json": (len(measured.metadata), "the config has no metadata"),
        "profiler_info.json": (measured.manifest is not None, "the trace has no manifest"),
    }
    levels = {name: why_not(measured, name) for name in LEVELLED}
    unrecorded = {name: why for name, (there, why) in _recorded(measured).items() if not there}
    if alone:  # no other setting brings what marks alone do not have
        unrecorded = {
            name: levels.get(name) or why_not_at(measured, "Level0") for name in unrecorded
        }
    left = {name: why for name, (there, why) in reasons.items() if not there}
    return {name: why for name, why in levels.items() if why} | unrecorded | left


def _recorded(measured: MeasuredTrace) -> dict[str, tuple[Any, str]]:
    """Return whether a trace has what files are made of, and what is said where it has not."""
    trace, torn = measured.trace, measured.tear.hides
    device, sent = trace.category(ON_DEVICE).any(), len(collectives(trace))
    operators = len(without_steps(measured))
    path = measured.critical_path
    return {
        "operator_details.csv": (operators, "no operator was recorded"),
        "kernel_details.csv": (device, _TORN if torn else "no device worked"),
        "op_statistic.csv": (measured.kinds, "no operator was recorded, and no device worked"),
        "step_trace_time.csv": (not torn, _TORN),
        "memory_record.csv, operator_memory.csv, memory_timeline": (
            len(trace.memory["time"]),
            "no allocation was recorded; profile_memory does",
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
            "no module and no label was recorded; with_stack and with_modules do",
        ),
        "operator_flops.csv": (len(measured.works), _NO_SHAPES),
        "backward_operators.csv": (len(measured.passes), "no backward pass was recorded"),
        "kernel_shapes.csv": (trace.category(KERNELS).any(), "no kernel was recorded"),
        "kernel_sequences.csv": (
            measured.sequences,
            "no elementwise kernels directly follow one another",
        ),
        "copy_bandwidth.csv": (trace.category(COPIES).any(), "no device copied"),
        "critical_path.csv": (path, _TORN if torn else "the steps take no time"),
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
    """Return why there are none, for whoever asked for them and for whoever did not."""
    if measured.manifest is None:  # nobody knows what was asked for
        return "nothing was marked"
    alone = level_of(measured) == "Level_none"
    if not (alone or _requests(measured, "mstx") or _requests(measured, "msprof_tx")):
        return "nothing was marked; mstx does"
    if _requests(measured, "mstx_domain_include") or _requests(measured, "mstx_domain_exclude"):
        return "nothing was marked in the domains that were asked for"
    return "nothing was marked"


def _requests(measured: MeasuredTrace, setting: str) -> bool:
    """Return whether a trace's config asks for something; where there is none, whoever reads."""
    if measured.manifest is None:
        return True
    return bool(_experimental(measured).get(setting))


def _experimental(measured: MeasuredTrace) -> dict[str, Any]:
    config = measured.manifest.request.config if measured.manifest else {}
    inner = config.get("experimental_config")
    return inner if isinstance(inner, dict) else {}
