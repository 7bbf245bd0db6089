"""``_ExperimentalConfig`` and its values, where ``torch_npu.profiler`` has them."""

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
from dynprof.runtime.warnings_to_script import warn_script

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
"""What the config file has for the strings of the vendor's members."""


class _ExperimentalConfig:
    """Settings beyond what every profiler has; docs/settings.md says what each does where.

    As with the vendor, a value that means nothing is replaced by the default, with a warning.

    Args:
        profiler_level: How deep to look.
        aic_metrics: What to sample of AI cores; left out, ``PipeUtilization`` from Level1 on.
        l2_cache: Collect L2 cache hit rates.
        msprof_tx: The older name of ``mstx``.
        mstx: Collect the marks and ranges of :mod:`dynprof.mstx`.
        data_simplification: Delete intermediate data once the tables are made.
        record_op_args: Write the arguments of operators to a file of their own.
        op_attr: Collect attributes of aclnn operators; needs ``ExportType.Db``.
        gc_detect_threshold: Record garbage collections longer than this, in ms.
        export_type: The form of the tables, or a list of both.
        host_sys: Parts of the host to sample.
        mstx_domain_include: Keep only marks of these domains.
        mstx_domain_exclude: Leave out marks of these domains.
        sys_io: Collect NIC and RoCE data.
        sys_interconnection: Collect HCCS and PCIe data.

    Attributes:
        settings: What became of it, as the config file has it.
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
        if aic_metrics is None:  # the level chose it: no remark is about it
            self.settings.model_fields_set.discard("aic_metrics")

    def __repr__(self) -> str:
        shown = self.settings.model_dump(exclude_defaults=True)
        return f"_ExperimentalConfig({', '.join(f'{k}={v!r}' for k, v in shown.items())})"


def _plain(value: Any) -> Any:
    """Return a value as the config file has it."""
    if isinstance(value, Enum):
        return value.value
    return [_plain(item) for item in value] if isinstance(value, (list, tuple, set)) else value


def _fitting(name: str, value: Any, usual: dict[str, Any]) -> tuple[Any, str]:
    """Return a value that can be used, and what is wrong with the one given, if anything is."""
    if not (reason := _why_unfit(name, value)):
        return value, ""
    default = usual.get(name, ExperimentalConfig.model_fields[name].get_default())
    if isinstance(value, str) and not _why_unfit(name, [value]):
        reason = f"write {[value]!r}"
    return default, f"{name}={value!r} cannot be used ({reason}); {default!r} is taken"


def _why_unfit(name: str, value: Any) -> str:
    try:
        ExperimentalConfig.model_validate({name: value})
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    return ""


def _contradictions(settings: ExperimentalConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield settings that another one rules out: name, what is taken instead, and why."""
    level, marks = settings.profiler_level, settings.mstx or settings.msprof_tx
    if settings.aic_metrics != "AiCoreNone" and level not in _DEEP:
        yield "aic_metrics", "AiCoreNone", "aic_metrics needs Level1 or Level2; none are sampled"
    if settings.op_attr and "db" not in settings.export_types:
        yield "op_attr", False, "op_attr needs ExportType.Db; it is switched off"
    if settings.marks_only and not marks:
        yield "mstx", True, "Level_none leaves only marks to record; mstx is switched on"
    if settings.marks_only and settings.msprof_tx and "db" in settings.export_types:
        text = "msprof_tx, ExportType.Db and Level_none do not go together; Text is taken"
        yield "export_type", "text", text
    include, exclude = settings.mstx_domain_include, settings.mstx_domain_exclude
    if (include or exclude) and not settings.marks:
        name = "mstx_domain_include" if include else "mstx_domain_exclude"
        yield name, [], f"{name} needs mstx=True; it has no effect"
    elif include and exclude:
        text = "mstx_domain_exclude has no effect: mstx_domain_include is set too, and wins"
        yield "mstx_domain_exclude", [], text
