"""Disk space that the files of an analysis leave free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.errors import CaptureError
from dynprof.files.layout import free_disk_mb

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.analysis.measures.measured_trace import MeasuredTrace


def check_space(measured: MeasuredTrace, folder: Path, more_bytes: int = 0) -> None:
    """Raise where a trace's files would leave less free than ``limits.min_free_disk_mb``.

    Args:
        measured: The trace; the limit is that of its config, else the default.
        folder: Where the files go; it may not be there yet.
        more_bytes: What is about to be written.

    Raises:
        CaptureError: Too little is free.
        OSError: The free space is not known.
    """
    from dynprof.captures.manifest import least_free_mb  # takes as long to load as numpy

    least_mb = least_free_mb(measured.manifest.request.config if measured.manifest else {})
    free_mb, more_mb = free_disk_mb(folder), more_bytes / 1e6
    if least_mb and free_mb - more_mb < least_mb:
        needed = f"its copy takes {more_mb:,.0f} MB, " if more_bytes else ""
        raise CaptureError(
            f"{measured.path} is not analysed further: {needed}{free_mb:,.0f} MB are free at "
            f"{folder}, of which an analysis leaves {least_mb:,.0f} MB; make room there, then run "
            "dynprof analyse (a config file may say less in limits.min_free_disk_mb)"
        )
