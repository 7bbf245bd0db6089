"""Status files of ranks, as their processes write them."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.journal.status import Status


def write_status(directory: Path, status: Status) -> Path:
    """Write the status of a rank into the directory of a config; return its path."""
    folder = directory / "status"
    folder.mkdir(parents=True, exist_ok=True)
    path, new = folder / f"rank_{status.rank}.json", folder / ".new"
    new.write_text(json.dumps(dataclasses.asdict(status)))
    new.replace(path)
    return path
