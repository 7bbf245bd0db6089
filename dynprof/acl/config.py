"""What a session records: from the script, or from the JSON file given to ``acl.init``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dynprof.config import ExperimentalConfig
from dynprof.config.experimental import AicMetrics, HostSystem, ProfilerLevel  # noqa: TC001
from dynprof.errors import ConfigError, Problem
from dynprof.files.regular import read_regular

if TYPE_CHECKING:
    import os

MAX_BYTES = 1 << 20
"""Of the JSON file."""
Switch = Literal["on", "off"]


class Config(BaseModel):
    """What to record, and of which devices; two with the same values are the same.

    Attributes:
        devices: Numbers of the devices; those that are not here are named, and the host is
            recorded all the same.
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
            raise ValueError("each device is named once, by a number of 0 or more")
        return devices

    def settings(self) -> dict[str, Any]:
        """Return it as the sections of a config file; marks are always on."""
        given = self.model_dump(exclude_defaults=True, exclude={"devices"})
        inner = {name: given.pop(name) for name in list(given) if name in _EXPERIMENTAL}
        if "host_sys" in inner:
            inner["host_sys"] = list(inner["host_sys"])
        return {**given, "experimental_config": {**inner, "mstx": True}}


_EXPERIMENTAL = set(ExperimentalConfig.model_fields)


class JsonProfiler(BaseModel):
    """The ``profiler`` object of the JSON file, under the vendor's keys."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    switch: Switch = "off"
    output: str = "."
    device_id: str = "0"
    aic_metrics: AicMetrics = "AiCoreNone"
    l2: Switch = "off"
    host_sys: str = ""

    def config(self) -> Config:
        """Return what it asks for."""
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
        """Keys that mean nothing here."""
        return tuple(self.model_extra or ())


def read_json(path: str | os.PathLike[str]) -> JsonProfiler | None:
    """Return what the JSON file asks for; None where it asks for no profiling.

    Raises:
        ConfigError: It cannot be used.
    """
    try:
        asked = json.loads(read_regular(Path(path), MAX_BYTES)).get("profiler")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError([Problem(f"{path} cannot be read as a JSON object: {error}")]) from error
    try:
        found = None if asked is None else JsonProfiler.model_validate(asked)
        if found:
            found.config()
    except (ValidationError, ValueError) as error:
        problems = error.errors() if isinstance(error, ValidationError) else []
        texts = [("/".join(["/profiler", *map(str, p["loc"])]), p["msg"]) for p in problems]
        raise ConfigError(
            [Problem(f"{text}.", pointer) for pointer, text in texts]
            or [Problem(f"{error}.", "/profiler/device_id")]
        ) from error
    return found if found and found.switch == "on" else None
