"""Compressed traces that expand to far more than any real trace."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.reading.chunks import NEVER_REFUSED
from dynprof.analysis.reading.trace import load_trace
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from pathlib import Path

EVENT = json.dumps({"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 5})


def padded(path: Path, size: int) -> Path:
    """Write a trace with a number of spaces between its events."""
    with gzip.open(path, "wt") as file:
        file.write(f'{{"traceEvents": [{EVENT},')
        for _ in range(size >> 20):
            file.write(" " * (1 << 20))
        file.write(f"{EVENT}]}}")
    return path


def test_a_trace_that_expands_too_far_is_refused_with_both_sizes(tmp_path: Path) -> None:
    """The refusal comes before memory or disk is full."""
    path = padded(tmp_path / "a.trace.json.gz", 2 * NEVER_REFUSED)
    with pytest.raises(CaptureError, match=r"0\.1 MB unpack to more than 67 MB"):
        load_trace(path)


def test_a_small_trace_that_packs_well_is_read(tmp_path: Path) -> None:
    """A trace that repeats a single event compresses as well."""
    path = padded(tmp_path / "a.trace.json.gz", NEVER_REFUSED // 2)
    assert len(load_trace(path).spans["start"]) == 2


@pytest.mark.parametrize("after", [b"", b"\0" * 512, b"other", b"\0\0other"])
def test_data_after_the_end_of_a_compressed_file_is_named(tmp_path: Path, after: bytes) -> None:
    """Zero bytes are padding; anything else is not read, and said so."""
    path = tmp_path / "a.trace.json.gz"
    packed = gzip.compress(b'{"traceEvents": [%b]}' % EVENT.encode())
    path.write_bytes(packed + after)
    trace = load_trace(path)
    assert (len(trace.spans["start"]), trace.complete) == (1, True)
    said = f"the compressed file has other data after {len(packed)} bytes, 100 uncompressed"
    assert trace.truncated.split(", ")[0] == (said.split(", ")[0] if b"other" in after else "")
