"""The form that requests a window: the settings of ``dynprof arm``, as the JSON Schema has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynprof.config import config_schema, parse_config, read_source
from dynprof.errors import ConfigError, reason
from dynprof.runtime.layout import CONFIG_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dynprof.fleet.page_data import Data


FIRST = (
    "active", "warmup", "ranks", "start_step", "every",
    "record_shapes", "profile_memory", "with_stack", "activities", "max_seconds",
)  # fmt: skip
"""The settings that are used most; the others are folded."""
EVERY: Data = {
    "key": "every",
    "section": "",
    "kind": "str",
    "panel": "",
    "description": "Repeat the window as a baseline until a cancel: 30m, 2h or 5000 steps.",
    "default": None,
    "choices": [],
    "value": None,
}
"""``every`` is an object in the file, and a text for ``arm``. It is for one request only."""
FOR_ONE_REQUEST = ("start_step",)
"""Settings that ``arm`` resets, so that the file's value does not matter."""


@dataclass(frozen=True)
class Setting:
    """A setting that ``dynprof arm`` takes.

    Attributes:
        section: The object in the file that holds it; empty for the top level.
        key: Its key there.
        kind: The type of its option: ``bool``, ``int``, ``float``, ``str``, ``list`` or ``dict``.
        panel: The title of its group; empty for the first one.
    """

    section: str
    key: str
    kind: str
    panel: str


def form(directory: Path, settings: Iterable[Setting]) -> Data:
    """Return the fields of the form, with the values that the config of a job has now."""
    values, problem = _values(directory)
    fields = [_field(setting, values) for setting in settings] + [EVERY]
    fields.sort(
        key=lambda field: FIRST.index(field["key"]) if field["key"] in FIRST else len(FIRST)
    )
    return {"first": len(FIRST), "fields": fields, "problem": problem}


def differing(
    directory: Path, settings: Iterable[Setting], shown: Data
) -> dict[str, str | float | bool]:
    """Return the settings of a filled form that the config of a job does not have now.

    Another person may have saved since the form was filled. The values shown are requested.
    """
    values = {field["key"]: field["value"] for field in form(directory, settings)["fields"]}
    return {
        key: value
        for key, value in shown.items()
        if key not in values or str(value) != _as_shown(values[key], value)
    }


def _as_shown(value: str | bool | None, shown: object) -> str:
    """Return a value as an input shows it: none is an empty text, or an empty box."""
    return str(bool(value) if isinstance(shown, bool) else "" if value is None else value)


def _values(directory: Path) -> tuple[dict[str, Any], str]:
    """Return the settings of a job's config, and why it cannot be read."""
    try:
        config = parse_config(read_source(directory / CONFIG_NAME).raw).config
    except (OSError, ConfigError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        return {}, f"the config cannot be read, so the form shows defaults: {why}"
    return config.model_dump(mode="json"), ""


def _field(setting: Setting, values: dict[str, Any]) -> Data:
    schema = config_schema()
    member = _section(schema, setting.section)["properties"][setting.key]
    kinds = [_resolved(schema, one) for one in member.get("anyOf", [member])]
    place = (values.get(setting.section) or {}) if setting.section else values
    default = member.get("default")
    value = default if setting.key in FOR_ONE_REQUEST else place.get(setting.key, default)
    found = {
        "key": setting.key,
        "section": setting.section,
        "kind": setting.kind,
        "panel": setting.panel,
        "description": member.get("description", ""),
        "default": _as_text(default),
        "choices": next((one["enum"] for one in kinds if "enum" in one), []),
        "value": _as_text(value),
    }
    if setting.kind == "dict":
        found["value"] = None
    if setting.kind == "list":
        found["choices"] = []
    bounds = ("minimum", "maximum", "exclusiveMinimum")
    return found | {name: one[name] for one in kinds for name in bounds if name in one}


def _section(schema: Data, section: str) -> Data:
    if not section:
        return schema
    member = schema["properties"][section]
    for one in member.get("anyOf", [member]):
        found = _resolved(schema, one)
        if "properties" in found:
            return found
    raise KeyError(section)


def _resolved(schema: Data, one: Data) -> Data:
    if "allOf" in one:
        one = one["allOf"][0]
    name = one.get("$ref", "").rpartition("/")[2]
    found: Data = schema["$defs"][name] if name else one
    return found


def _as_text(value: Any) -> str | bool | None:
    """Return a value as an input of the form has it, and as an option of ``arm`` takes it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value) if isinstance(value, dict) else str(value)
