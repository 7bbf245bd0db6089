"""The JSON Schema and the template, both made from the model."""

from __future__ import annotations

import functools
import json
from typing import Any

from dynprof.config.experimental import ExperimentalConfig
from dynprof.config.limits import Limits
from dynprof.config.model import ProfilerConfig
from dynprof.files.layout import SCHEMA_NAME

_SEED_TOP = (
    "prof_dir",
    "analyse",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
    "active",
)
_SEED_EXPERIMENTAL = (
    "profiler_level",
    "aic_metrics",
    "l2_cache",
    "op_attr",
    "data_simplification",
    "record_op_args",
    "export_type",
    "msprof_tx",
)


@functools.cache
def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a config."""
    schema = ProfilerConfig.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for member in section.get("properties", {}).values():
            member.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dynprof profiler_config.json",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def schema_text() -> str:
    """Return the schema as the file that lies in ``schemas/`` and beside every config."""
    return json.dumps(config_schema(), indent=2) + "\n"


def template_text(activities: tuple[str, ...]) -> str:
    """Return the file that ``init()`` creates: the vendor's keys first, in the vendor's order.

    Args:
        activities: What this machine can watch, such as ``("CPU", "CUDA")``; none where that is not
            known yet: a config that names none asks for all there is.
    """
    default = ProfilerConfig().model_dump(mode="json")
    experimental = ExperimentalConfig().model_dump(mode="json")
    template = {
        "$schema": f"./{SCHEMA_NAME}",
        **({"activities": list(activities)} if activities else {}),
        **{key: default[key] for key in _SEED_TOP},
        "experimental_config": {key: experimental[key] for key in _SEED_EXPERIMENTAL},
        "warmup": default["warmup"],
        "start_step": default["start_step"],
        "backend": default["backend"],
        "ranks": "all",
        "cancel": False,
        "limits": Limits().model_dump(mode="json"),
    }
    return json.dumps(template, indent=4) + "\n"
