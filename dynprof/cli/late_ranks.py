"""Ranks that come up just as a config is saved: not there before, and yet they have read it."""

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
"""A process reads the config, and writes its first status a tenth of a second later, or two."""
READ_S = 5.0
"""It looks at the config again two seconds after at the latest, where it had read the older one."""


def with_new_ranks(directory: Path, sha256: str, before: list[Status]) -> list[Status]:
    """Return the ranks that a save asks: those before it, and newer ones that have read it.

    A process that comes up and finds what was saved as it begins is not asked for anything.

    Args:
        directory: That of the config.
        sha256: Digest of what was saved.
        before: The live ranks before that.
    """
    began_s = time.monotonic()
    known = {status.process for status in before}
    while True:
        new = [status for status in live(directory) if status.process not in known]
        informed = [status for status in new if any(a.sha256 == sha256 for a in status.edits)]
        patience_s = READ_S if new else 0.0 if before else FIRST_STATUS_S
        if (new and len(informed) == len(new)) or time.monotonic() - began_s >= patience_s:
            # As they were before it: what has become of the save is asked later.
            return [*before, *(replace(status, edits=()) for status in informed)]
        time.sleep(POLL_S)
