"""An analysis leaves the free space that ``limits.min_free_disk_mb`` reserves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.one_trace import write_analysis
from dynprof.analysis.vendor_files import json_files
from dynprof.captures.manifest import least_free_mb
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from pathlib import Path

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}


def test_a_full_disk_ends_the_analysis_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a table nor a copy of the trace is written."""
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": [EVENT]}))
    monkeypatch.setattr(json_files, "free_disk_mb", lambda _: 1000.0)
    with pytest.raises(CaptureError, match=r"1,000 MB are free .* 1,024 MB must stay free"):
        list(write_analysis(MeasuredTrace(path), None))
    assert not list(tmp_path.rglob("*.csv"))


def test_the_copy_of_a_trace_counts_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is as large as the uncompressed trace."""
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"pad": " " * 2_000_000, "traceEvents": [EVENT]}))
    monkeypatch.setattr(json_files, "free_disk_mb", lambda _: 1025.0)
    with pytest.raises(CaptureError, match="its copy takes 2 MB, 1,025 MB are free"):
        list(write_analysis(MeasuredTrace(path), ["text"]))
    assert not list(tmp_path.rglob("trace_view.json"))


@pytest.mark.parametrize(
    ("config", "least"),
    [
        ({}, 1024),
        ({"limits": {"min_free_disk_mb": 5}}, 5),
        ({"limits": {"min_free_disk_mb": None}}, None),
        ({"limits": {"min_free_disk_mb": "much"}}, 1024),
        ({"limits": []}, 1024),
    ],
)
def test_the_captures_config_sets_the_reserve(config: dict[str, Any], least: float) -> None:
    """Without that setting the default counts."""
    assert least_free_mb(config) == least
