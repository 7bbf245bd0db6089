"""Which of the files that were not written the config requested explicitly."""

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
"""The settings whose only purpose is a file, by file."""


def requested_files(left_out: Mapping[str, str], config: Mapping[str, object]) -> dict[str, str]:
    """Return the missing files, with their reasons, that a setting of the config requested.

    Args:
        left_out: The reasons why files are not written, by file.
        config: The config in the manifest.
    """
    inner = config.get("experimental_config")
    settings = {**config, **(inner if isinstance(inner, dict) else {})}
    asked = {
        file
        for file, names in _SETTINGS.items()
        if any(settings.get(name) is True for name in names)
    }
    return {name: why for name, why in left_out.items() if asked & {*name.split(", ")}}
