"""The JSON Schema and the template, both made from the model."""

from __future__ import annotations

import functools
import json
from typing import Any

from dynprof.config.model import ProfilerConfig
from dynprof.runtime.layout import SCHEMA_NAME

_VENDORS_KEYS = (
    "activities",
    "prof_dir",
    "analyse",
    "async_mode",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
    "active",
    "warmup",
    "start_step",
    "is_rank",
    "rank_list",
    "experimental_config",
)
"""Those of torch_npu 2.14.0, in its order."""


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


def template_text(activities: tuple[str, ...] = ()) -> str:
    """Return the file that ``init()`` creates: the vendor's keys and defaults, then dynprof's own.

    Args:
        activities: What to watch, such as ``("CPU", "CUDA")``; none for the vendor's default, which
            asks for all that the machine has.
    """
    default = ProfilerConfig().model_dump(mode="json")
    template = {
        "$schema": f"./{SCHEMA_NAME}",
        **{key: default[key] for key in _VENDORS_KEYS},
        **({"activities": list(activities)} if activities else {}),
        "backend": default["backend"],
        "ranks": default["ranks"],
        "cancel": default["cancel"],
        "limits": default["limits"],
    }
    return json.dumps(template, indent=4) + "\n"
