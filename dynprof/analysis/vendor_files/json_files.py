"""Writes the vendor's JSON files, in folders that are safe to use, if the disk has space."""

from __future__ import annotations

import contextlib
import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dynprof.analysis.reading.chunks import Readable, Truncated, opened
from dynprof.analysis.vendor_files.communication import communication, communication_matrix
from dynprof.analysis.vendor_files.tables import is_written
from dynprof.errors import CaptureError
from dynprof.runtime.layout import ANALYSIS_DIR, VENDORS_FOLDER, VENDORS_VIEW, free_disk_mb
from dynprof.runtime.safe_open import make_dir
from dynprof.runtime.safe_write import atomic_file, write_atomic
from dynprof.runtime.side_process import RESERVE_MB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynprof.analysis.measures.measured_trace import MeasuredTrace

FOLDER = ANALYSIS_DIR
"""Folder next to a trace; the results for it are there, in a folder of the trace's name."""
_AT_ONCE = 1 << 18
"""Bytes copied at once, which fit into a CPU's cache: 1 MB takes four times as long."""
_CHECKED_AFTER = 64 << 20
"""Bytes between two checks of the free space; other processes may fill the disk."""


def make_output_folder(folder: Path) -> None:
    """Create a folder for results, and its parents.

    Raises:
        OSError: It cannot be created, or is a link, which may lead anywhere. Its parents are
            checked too, up to :data:`FOLDER` or the vendor's folder.
    """
    for place in (folder, *folder.parents):
        if place.name.endswith(VENDORS_FOLDER):
            break
        if place.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link, which is not followed", str(place))
        if place.name == FOLDER:
            break
    make_dir(folder)


def output_file(output: Path | str | None, folder: Path, name: str) -> Path:
    """Return the path of a file to write, after creating its folder.

    Args:
        output: The file, or a folder that exists or whose name ends with a slash.
        folder: The folder to use if ``output`` is None.
        name: The name of the file in a folder.

    Raises:
        OSError: The folder cannot be created.
    """
    if output is None:
        make_output_folder(folder)
        return folder / name
    place = Path(output)
    if str(output).endswith("/"):
        make_dir(place.absolute())
    if place.is_dir():
        return place / name
    make_dir(place.absolute().parent)
    return place


def check_space(measured: MeasuredTrace, folder: Path, more_bytes: int = 0) -> None:
    """Raise if a trace's files would leave less free space than ``limits.min_free_disk_mb``.

    Args:
        measured: The trace; the limit is that of its config, else the default.
        folder: Where the files go; it may not exist yet.
        more_bytes: The bytes that are about to be written.

    Raises:
        CaptureError: Too little space is free.
        OSError: The free space is unknown.
    """
    least_mb: float | None = RESERVE_MB
    if measured.manifest:
        from dynprof.captures.manifest import least_free_mb  # loads the config: 0.1 s

        least_mb = least_free_mb(measured.manifest.request.config)
    free_mb, more_mb = free_disk_mb(folder), more_bytes / 1e6
    if least_mb and free_mb - more_mb < least_mb:
        needed = f"its copy takes {more_mb:,.0f} MB, " if more_bytes else ""
        raise CaptureError(
            f"{measured.path} is not analysed further: {needed}{free_mb:,.0f} MB are free at "
            f"{folder}, and {least_mb:,.0f} MB must stay free. Make room there, then run dynprof "
            "analyse (for later captures a config can lower limits.min_free_disk_mb)"
        )


def write_json_files(measured: MeasuredTrace, folder: Path) -> Iterator[Path]:
    """Write the json files that are not empty; yield their paths."""
    view = folder / VENDORS_VIEW
    with opened(measured.path) as source, atomic_file(view) as sink:
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
    """Copy a trace up to where it is damaged, with regular checks of the disk."""
    unchecked = 0
    with contextlib.suppress(Truncated):
        while chunk := source.read(_AT_ONCE):
            sink.write(chunk)
            unchecked += len(chunk)
            if unchecked >= _CHECKED_AFTER:
                check()
                unchecked = 0
