"""Which of the files that a trace has nothing to say in its config has asked for by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTINGS = {
    "memory_record.csv": ("profile_memory",),
    "msprof_tx.csv": ("mstx", "msprof_tx"),
    "l2_cache.csv": ("l2_cache",),
    "module_details.csv": ("with_modules",),
    "operator_flops.csv": ("with_flops",),
}
"""Which settings are there for a file alone."""


def requested_files(left_out: Mapping[str, str], config: Mapping[str, object]) -> dict[str, str]:
    """Return those of the files that are not written which a setting of the config is there for.

    Args:
        left_out: Why files are not written, by what they are.
        config: The config, as the manifest has it.
    """
    inner = config.get("experimental_config")
    settings = {**config, **(inner if isinstance(inner, dict) else {})}
    asked = {
        file
        for file, names in _SETTINGS.items()
        if any(settings.get(name) is True for name in names)
    }
    return {name: why for name, why in left_out.items() if asked & {*name.split(", ")}}
