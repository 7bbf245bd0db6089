"""What a session records: from the script, or from the JSON file given to ``acl.init``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dynprof.config import ExperimentalConfig
from dynprof.config.sections import AicMetrics, HostSystem, ProfilerLevel  # noqa: TC001
from dynprof.errors import ConfigError, Problem
from dynprof.runtime.safe_open import read_regular
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

MAX_BYTES = 1 << 20
"""Largest JSON file, in bytes."""
NO_METRICS = 0xFF
"""``ACL_AICORE_NONE``."""
_METRICS: dict[int, AicMetrics] = {
    0: "ArithmeticUtilization",
    1: "PipeUtilization",
    2: "Memory",
    3: "MemoryL0",
    4: "ResourceConflictRatio",
    5: "MemoryUB",
    6: "L2Cache",
    8: "MemoryAccess",
    NO_METRICS: "AiCoreNone",
}
"""``aclprofAicoreMetrics``, by the names of torch_npu, which has none for 7."""
_AICORE_METRICS = 0x0004
_AICPU = 0x0008
"""Bits of the data types: metrics of AI cores, and AI CPUs."""
_EXPERIMENTAL = set(ExperimentalConfig.model_fields)
Switch = Literal["on", "off"]


class Config(BaseModel):
    """What to record, and on which devices; configs with equal values are equal.

    Attributes:
        devices: Numbers of the devices, which the trace names and no other start may name. They
            do not change what is recorded: torch records each device that the process uses, an
            NPU's profiler the current one. A warning names missing devices.
        record_shapes: Record the shapes and types of operator inputs.
        profile_memory: Record allocations and releases of tensor memory.
        with_stack: Record the Python call stack of operators.
        profiler_level: How deep to look.
        aic_metrics: What to sample of AI cores; needs Level1 or Level2.
        l2_cache: Collect L2 cache hit rates.
        host_sys: Parts of the host to sample.
        gc_detect_threshold: Record garbage collections longer than this, in ms.

    Raises:
        pydantic.ValidationError: A value is none of those allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    devices: tuple[int, ...] = Field(default=(0,), min_length=1)
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    profiler_level: ProfilerLevel = "Level0"
    aic_metrics: AicMetrics = "AiCoreNone"
    l2_cache: bool = False
    host_sys: tuple[HostSystem, ...] = ()
    gc_detect_threshold: float | None = Field(default=None, ge=0)

    @field_validator("devices")
    @classmethod
    def _no_device_twice(cls, devices: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(devices)) < len(devices) or min(devices) < 0:
            raise ValueError("each device number must be 0 or more, and named once")
        return devices

    def settings(self) -> dict[str, Any]:
        """Return the config as sections of a config file; marks are always on."""
        given = self.model_dump(exclude_defaults=True, exclude={"devices"})
        inner = {name: given.pop(name) for name in list(given) if name in _EXPERIMENTAL}
        if "host_sys" in inner:
            inner["host_sys"] = list(inner["host_sys"])
        return {**given, "experimental_config": {**inner, "mstx": True}}


class _DataType(NamedTuple):
    """A bit of ``aclproftype``.

    Attributes:
        name: The vendor's name.
        level: The lowest profiler level of torch_npu that collects it.
        switch: The setting that it turns on in a :class:`Config`; empty for none.
        unserved: Why it has no effect; empty where it has.
    """

    name: str
    level: int = 0
    switch: str = ""
    unserved: str = ""


_DATA_TYPES = {
    0x0001: _DataType("ACL_PROF_ACL_API"),
    0x0002: _DataType("ACL_PROF_TASK_TIME", level=1),
    _AICORE_METRICS: _DataType("ACL_PROF_AICORE_METRICS", level=1),
    _AICPU: _DataType("ACL_PROF_AICPU", level=2),
    0x0010: _DataType("ACL_PROF_L2CACHE", switch="l2_cache"),
    0x0020: _DataType("ACL_PROF_HCCL_TRACE", level=1),
    0x0040: _DataType("ACL_PROF_TRAINING_TRACE", unserved="a session has no iterations"),
    0x0080: _DataType("ACL_PROF_MSPROFTX"),
    0x0100: _DataType("ACL_PROF_RUNTIME_API", level=2),
    0x0800: _DataType("ACL_PROF_TASK_TIME_L0"),
    0x1000: _DataType("ACL_PROF_TASK_MEMORY", switch="profile_memory"),
    0x4000: _DataType("ACL_PROF_OP_ATTR", unserved="a session has no export_type db"),
}


def from_acl(devices: Sequence[int], metrics: int, events: int, data_types: int) -> Config:
    """Return the config for the arguments of pyACL's ``create_config``.

    Raises:
        pydantic.ValidationError: A device number is invalid or named twice.
    """
    kinds = [kind for bit, kind in _DATA_TYPES.items() if data_types & bit]
    sampled = bool(data_types & _AICORE_METRICS)
    config = Config.model_validate(
        {
            "devices": tuple(devices),
            "profiler_level": f"Level{max((kind.level for kind in kinds), default=0)}",
            "aic_metrics": _METRICS.get(metrics, "AiCoreNone") if sampled else "AiCoreNone",
            **{kind.switch: True for kind in kinds if kind.switch},
        }
    )
    for text in _unserved(metrics, events, data_types):
        warn_script(f"acl.prof.create_config(): {text}")
    return config


def _unserved(metrics: int, events: int, data_types: int) -> Iterator[str]:
    """Yield a text for each argument of ``create_config`` that has no effect."""
    if metrics not in _METRICS:
        yield f"aicore_metrics={metrics!r} is not known; no metrics are sampled"
    elif metrics not in (0, NO_METRICS) and not data_types & _AICORE_METRICS:
        text = f"{_METRICS[metrics]} needs ACL_PROF_AICORE_METRICS ({_AICORE_METRICS}) in"
        yield f"aicore_metrics={metrics} has no effect: {text} data_type_config"
    if events:
        yield f"aicore_events={events!r} has no effect: write 0, as there are none yet"
    for bit, kind in _DATA_TYPES.items():
        if data_types & bit and kind.unserved:
            yield f"{kind.name} has no effect: {kind.unserved}"
    if data_types & _AICPU and "torch_npu" not in sys.modules:
        yield f"{_DATA_TYPES[_AICPU].name} has no effect: only an Ascend NPU has AI CPUs"
    if unknown := data_types & ~sum(_DATA_TYPES):
        yield f"data_type_config has unknown bits, which have no effect: {unknown:#x}"


class JsonProfiler(BaseModel):
    """The ``profiler`` object of the JSON file, under the vendor's keys."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    switch: Switch = "off"
    output: str = "."
    device_id: str = "0"
    aic_metrics: AicMetrics = "AiCoreNone"
    l2: Switch = "off"
    host_sys: str = ""

    @field_validator("device_id")
    @classmethod
    def _names_devices(cls, device_id: str) -> str:
        if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", device_id, re.ASCII):
            raise ValueError('it must be device numbers with commas in between, such as "0,1"')
        return device_id

    def config(self) -> Config:
        """Return the config that it describes."""
        parts = [part.strip() for part in self.host_sys.split(",") if part.strip()]
        level = "Level0" if self.aic_metrics == "AiCoreNone" else "Level1"
        return Config.model_validate(
            {
                "devices": [int(number) for number in self.device_id.split(",")],
                "profiler_level": level,
                "aic_metrics": self.aic_metrics,
                "l2_cache": self.l2 == "on",
                "host_sys": parts,
            }
        )

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys that have no effect."""
        return tuple(self.model_extra or ())


def read_json(path: str | os.PathLike[str]) -> JsonProfiler | None:
    """Return the ``profiler`` object of the JSON file; None where it requests no profiling.

    Raises:
        ConfigError: The file cannot be used.
    """
    try:
        requested = json.loads(read_regular(Path(path), MAX_BYTES)).get("profiler")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            [Problem(f"{str(path)!r} cannot be read as a JSON object: {error}")]
        ) from error
    try:
        found = None if requested is None else JsonProfiler.model_validate(requested)
        if found:
            found.config()
    except (ValidationError, ValueError) as error:
        problems = error.errors() if isinstance(error, ValidationError) else []
        texts = [
            ("/".join(["/profiler", *map(str, p["loc"])]), p["msg"].removeprefix("Value error, "))
            for p in problems
        ]
        raise ConfigError(
            [Problem(f"{text}.", pointer) for pointer, text in texts]
            or [Problem(f"{error}.", "/profiler/device_id")]
        ) from error
    return found if found and found.switch == "on" else None
