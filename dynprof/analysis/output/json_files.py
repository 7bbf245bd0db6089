"""The vendor's json files beside its tables."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, BinaryIO

from dynprof.analysis.output.communication import communication, communication_matrix
from dynprof.analysis.output.free_space import check_space
from dynprof.analysis.output.levels import is_written
from dynprof.analysis.reading.inflate import Readable, Torn, opened
from dynprof.files.output import whole, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dynprof.analysis.measures.measured_trace import MeasuredTrace

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
