"""Writes what is made from the config's model: the JSON Schema here, and docs/settings.md."""

from __future__ import annotations

from pathlib import Path

from dynprof.config import schema_text
from dynprof.config.settings_table import settings_markdown
from dynprof.files.layout import SCHEMA_NAME

ROOT = Path(__file__).parent.parent


def generated() -> dict[Path, str]:
    """Return the content of each generated file."""
    return {
        ROOT / "schemas" / SCHEMA_NAME: schema_text(),
        ROOT / "docs" / "settings.md": settings_markdown(),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
