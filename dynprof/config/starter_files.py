"""Write the template and the schema into a config's directory."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from dynprof.config import parse_config, schema_text, template_text
from dynprof.runtime.layout import CONFIG_NAME, SCHEMA_NAME
from dynprof.runtime.output import write_atomic, write_if_absent
from dynprof.runtime.safe_open import read_regular

if TYPE_CHECKING:
    from pathlib import Path


def write_starter_files(root: Path, activities: tuple[str, ...] = ()) -> bool:
    """Write the files that do not exist yet; if many ranks start at once, one rank writes.

    Args:
        root: The directory, which must exist.
        activities: What the template records; empty: everything that the machine has.

    Returns:
        Whether this call wrote the config.

    Raises:
        OSError: The directory is not writable.
    """
    template = template_text(activities)
    parse_config(template.encode())  # imports now what the first edit would import during training
    path, schema = root / SCHEMA_NAME, schema_text()
    if not _holds(path, schema.encode()):
        write_atomic(path, schema)
    config = root / CONFIG_NAME
    return not os.path.lexists(config) and write_if_absent(config, template)


def _holds(path: Path, content: bytes) -> bool:
    with contextlib.suppress(OSError):
        return read_regular(path, len(content), follow_symlinks=True) == content
    return False
