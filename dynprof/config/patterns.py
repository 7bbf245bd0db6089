"""Patterns of texts in the config."""

from __future__ import annotations

PATH_PATTERN = r"""^[^\x00-\x1f\x7f"\\]+$"""
"""Of paths, without quotes and backslashes: torch writes the path into the trace as it is."""
_RANKS = (
    "([0-9]{1,7}( *- *[0-9]{1,7})?|every [1-9][0-9]{0,6}(st|nd|rd|th)|one per host|slowest|median)"
)
RANKS_PATTERN = f"^(all|{_RANKS}(( *, *| and ){_RANKS})*)$"
