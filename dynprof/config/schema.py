"""The JSON Schema and the template, both generated from the model."""

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
"""The keys of torch_npu 2.14.0, in its order."""


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
    """Return the text of the schema file, which is in ``schemas/`` and next to every config."""
    return json.dumps(config_schema(), indent=2) + "\n"


def template_text(activities: tuple[str, ...] = ()) -> str:
    """Return the file that ``init()`` creates: the vendor's keys and defaults, then dynprof's own.

    Args:
        activities: What to record, such as ``("CPU", "CUDA")``; empty for the vendor's default,
            which means everything that the machine has.
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
