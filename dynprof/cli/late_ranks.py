"""Ranks that start while a config is saved: they had no status before, but have read it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.cli.config_directory import live

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.journal.status import Status

POLL_S = 0.05
FIRST_STATUS_S = 0.5
"""How long to wait for a first status, which follows 0.1 to 0.2 s after reading the config."""
READ_S = 5.0
"""How long to wait for a new process to read the save: it looks again within two seconds."""


def with_new_ranks(directory: Path, sha256: str, before: list[Status]) -> list[Status]:
    """Return the ranks that a save asks: those before it, and newer ones that have read it.

    A process that finds the saved file when it starts does not treat it as a request.

    Args:
        directory: The directory of the config.
        sha256: Digest of the saved config.
        before: The ranks that were live before the save.
    """
    began_s = time.monotonic()
    known = {status.process for status in before}
    while True:
        new = [status for status in live(directory) if status.process not in known]
        informed = [status for status in new if any(a.sha256 == sha256 for a in status.edits)]
        patience_s = READ_S if new else 0.0 if before else FIRST_STATUS_S
        if (new and len(informed) == len(new)) or time.monotonic() - began_s >= patience_s:
            # As they were before the save: the follower reads its outcome later.
            return [*before, *(replace(status, edits=()) for status in informed)]
        time.sleep(POLL_S)
