"""``_ExperimentalConfig`` and its values, under ``torch_npu.profiler``'s module name."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dynprof.config import ExperimentalConfig
from dynprof.profiler.enums import (
    AiCMetrics,
    ExportType,
    HostSystem,
    ProfilerLevel,
    supported_ai_core_metrics,
    supported_export_type,
    supported_profiler_level,
)
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
]
_DEEP = ("Level1", "Level2")
_METRIC_NAMES = {metric.value: metric.name for metric in AiCMetrics}
"""Names of metrics in the config file, by the vendor's strings."""


class _ExperimentalConfig:
    """Additional settings; docs/settings.md lists the effect of each on every backend.

    As with the vendor, an invalid value is replaced by the default, with a warning.

    Args:
        profiler_level: Level of detail.
        aic_metrics: AI core metrics to sample; default: ``PipeUtilization`` from Level1 on.
        l2_cache: Collect L2 cache hit rates.
        msprof_tx: Older name of ``mstx``.
        mstx: Collect the marks and ranges of :mod:`dynprof.mstx`.
        data_simplification: Delete intermediate data after the analysis.
        record_op_args: Write operator arguments to a separate file.
        op_attr: Collect attributes of aclnn operators; needs ``ExportType.Db``.
        gc_detect_threshold: Record garbage collections longer than this, in ms.
        export_type: The format of the tables, or a list of both.
        host_sys: Host resources to sample.
        mstx_domain_include: Keep only the marks of these domains.
        mstx_domain_exclude: Drop the marks of these domains.
        sys_io: Collect NIC and RoCE data.
        sys_interconnection: Collect HCCS and PCIe data.

    Attributes:
        settings: The resulting settings, as in the config file.
    """

    def __init__(
        self,
        profiler_level: ProfilerLevel | str = ProfilerLevel.Level0,
        aic_metrics: AiCMetrics | str | None = None,
        l2_cache: bool = False,
        msprof_tx: bool = False,
        mstx: bool = False,
        data_simplification: bool | None = True,
        record_op_args: bool = False,
        op_attr: bool = False,
        gc_detect_threshold: float | None = None,
        export_type: ExportType | str | Sequence[ExportType | str] = ExportType.Text,
        host_sys: Sequence[str] | None = None,
        mstx_domain_include: Sequence[str] | None = None,
        mstx_domain_exclude: Sequence[str] | None = None,
        sys_io: bool = False,
        sys_interconnection: bool = False,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        usual = {"aic_metrics": "PipeUtilization" if profiler_level in _DEEP else "AiCoreNone"}
        if aic_metrics is None:
            given |= usual
        elif isinstance(aic_metrics, str):
            given["aic_metrics"] = _METRIC_NAMES.get(aic_metrics, aic_metrics)
        fit: dict[str, Any] = {}
        for name, value in given.items():
            fit[name], problem = _fitting(name, _plain(value), usual)
            if problem:
                warn_script(problem)
        for name, value, problem in _contradictions(ExperimentalConfig(**fit)):
            fit[name] = value
            warn_script(problem)
        self.settings = ExperimentalConfig(**fit)
        if aic_metrics is None:  # the level chose it: no remarks about it
            self.settings.model_fields_set.discard("aic_metrics")

    def __repr__(self) -> str:
        shown = self.settings.model_dump(exclude_defaults=True)
        return f"_ExperimentalConfig({', '.join(f'{k}={v!r}' for k, v in shown.items())})"


def _plain(value: Any) -> Any:
    """Return a value as in the config file."""
    if isinstance(value, Enum):
        return value.value
    return [_plain(item) for item in value] if isinstance(value, (list, tuple, set)) else value


def _fitting(name: str, value: Any, usual: dict[str, Any]) -> tuple[Any, str]:
    """Return a valid value, and what is wrong with the given one (empty for nothing)."""
    if not (reason := _why_unfit(name, value)):
        return value, ""
    default = usual.get(name, ExperimentalConfig.model_fields[name].get_default())
    if isinstance(value, str) and not _why_unfit(name, [value]):
        reason = f"write {[value]!r}"
    return default, f"{name}={value!r} cannot be used ({reason}); {default!r} is used"


def _why_unfit(name: str, value: Any) -> str:
    try:
        ExperimentalConfig.model_validate({name: value})
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    return ""


def _contradictions(settings: ExperimentalConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield settings that contradict another one: name, value to use instead, and reason."""
    level, marks = settings.profiler_level, settings.mstx or settings.msprof_tx
    if settings.aic_metrics != "AiCoreNone" and level not in _DEEP:
        yield "aic_metrics", "AiCoreNone", "aic_metrics needs Level1 or Level2; none are sampled"
    if settings.op_attr and "db" not in settings.export_types:
        yield "op_attr", False, "op_attr needs ExportType.Db; it is switched off"
    if settings.marks_only and not marks:
        yield "mstx", True, "Level_none records only marks; mstx is switched on"
    if settings.marks_only and settings.msprof_tx and "db" in settings.export_types:
        text = "msprof_tx, ExportType.Db and Level_none do not go together; Text is used"
        yield "export_type", "text", text
    include, exclude = settings.mstx_domain_include, settings.mstx_domain_exclude
    if (include or exclude) and not settings.marks:
        name = "mstx_domain_include" if include else "mstx_domain_exclude"
        yield name, [], f"{name} needs mstx=True; it has no effect"
    elif include and exclude:
        text = "mstx_domain_exclude has no effect: mstx_domain_include takes precedence"
        yield "mstx_domain_exclude", [], text
