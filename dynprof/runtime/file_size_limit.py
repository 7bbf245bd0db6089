"""How large a file of a process beside the training may become: it must not fill the job's disk."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

from dynprof.runtime.layout import free_disk_mb

if TYPE_CHECKING:
    from pathlib import Path

RESERVE_MB = 1024.0
"""MB (10^6 bytes) that stay free on the job's disk, as the default of ``min_free_disk_mb``."""
_LEAST_MB = 64.0
"""A process on a full disk must still be able to say so."""


def limit_file_size(folder: Path, reserve_mb: float = RESERVE_MB) -> None:
    """Let no file of this process outgrow the space that is free now, but for a reserve.

    Args:
        folder: The folder that it writes to.
        reserve_mb: How many MB (10^6 bytes) to leave.
    """
    most = int(max(_LEAST_MB, free_disk_mb(folder) - reserve_mb) * 1e6)
    _, allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    if allowed != resource.RLIM_INFINITY:
        most = min(most, allowed)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def with_size_limit(error: BaseException, text: str) -> str:
    """Return what was said of an error, and the limit where that was it."""
    too_large = isinstance(error, OSError) and error.errno == errno.EFBIG
    if not too_large and os.strerror(errno.EFBIG) not in text:  # DuckDB's has no number
        return text
    most_mb = resource.getrlimit(resource.RLIMIT_FSIZE)[0] / 1e6
    return f"{text}; a file may take {most_mb:,.0f} MB here, to leave the job's disk some space"
