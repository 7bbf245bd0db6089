"""Size limit for the files of a side process, which must not fill the job's disk."""

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
"""Smallest limit in MB (10^6 bytes): a process on a full disk must still write its error."""


def limit_file_size(folder: Path, reserve_mb: float = RESERVE_MB) -> None:
    """Limit each file of this process to the free space, minus a reserve.

    Args:
        folder: The folder that it writes to.
        reserve_mb: How many MB (10^6 bytes) to leave free.
    """
    most = int(max(_LEAST_MB, free_disk_mb(folder) - reserve_mb) * 1e6)
    _, allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    if allowed != resource.RLIM_INFINITY:
        most = min(most, allowed)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def with_size_limit(error: BaseException, text: str) -> str:
    """Return an error's text, with the limit if the file was too large."""
    too_large = isinstance(error, OSError) and error.errno == errno.EFBIG
    if not too_large and os.strerror(errno.EFBIG) not in text:  # DuckDB's error has no errno
        return text
    most_mb = resource.getrlimit(resource.RLIMIT_FSIZE)[0] / 1e6
    return f"{text}; files are limited to {most_mb:,.0f} MB here, to keep space on the job's disk"
