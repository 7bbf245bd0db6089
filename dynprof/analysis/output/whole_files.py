"""Files that analysis writes: whole, where there is space, as JSON in the vendor's words."""

from __future__ import annotations

import contextlib
import errno
import json
from typing import TYPE_CHECKING, Any, BinaryIO

from dynprof.analysis.output.communication import communication, communication_matrix
from dynprof.analysis.output.levels import is_written
from dynprof.analysis.reading.inflate import Readable, Torn, opened
from dynprof.errors import CaptureError
from dynprof.runtime.folders import make_dir
from dynprof.runtime.layout import ANALYSIS_DIR, VENDORS_FOLDER, free_disk_mb
from dynprof.runtime.output import whole, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dynprof.analysis.measures.measured_trace import MeasuredTrace

FOLDER = ANALYSIS_DIR
"""Beside a trace; what is made from it lies there, in a folder of the trace's name."""


def make_output_folder(folder: Path) -> None:
    """Create a folder that analysis writes in, and its parents.

    Raises:
        OSError: It cannot be made, or up to :data:`FOLDER`, or below a folder named as the
            vendor's, is a link, which may lead anywhere.
    """
    for place in (folder, *folder.parents):
        if place.name.endswith(VENDORS_FOLDER):
            break
        if place.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link, which is not followed", str(place))
        if place.name == FOLDER:
            break
    make_dir(folder)


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


_AT_ONCE = 1 << 18
"""Bytes that stay in a processor's own cache: copying costs a quarter of what a MB at once does."""
_CHECKED_AFTER = 64 << 20
"""Bytes between two looks at the free space; others may fill the disk in the meantime."""


def write_json_files(measured: MeasuredTrace, folder: Path) -> Iterator[Path]:
    """Write the json files that have something to say; yield their paths."""
    view = folder / "trace_view.json"
    with opened(measured.path) as source, whole(view) as sink:
        _copy(source, sink, lambda: check_space(measured, folder))
    yield view
    contents: dict[Path, Callable[[MeasuredTrace], dict[str, Any]]] = {
        folder / "communication.json": communication,
        folder / "communication_matrix.json": communication_matrix,
    }
    for path, made in contents.items():
        if is_written(measured, path.name) and (content := made(measured)):
            write_atomic(path, json.dumps(content, indent=1) + "\n")
            yield path


def _copy(source: Readable, sink: BinaryIO, check: Callable[[], None]) -> None:
    """Copy a trace, as far as it is whole, with a check of the disk now and then."""
    unchecked = 0
    with contextlib.suppress(Torn):
        while chunk := source.read(_AT_ONCE):
            sink.write(chunk)
            unchecked += len(chunk)
            if unchecked >= _CHECKED_AFTER:
                check()
                unchecked = 0
