"""What the comparison of two captures says about their origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.runs.window_difference import compare
from dynprof.runtime.layout import INFO_DIR
from tests.unit.analysis.vendor_files.captured import captured, window

if TYPE_CHECKING:
    from pathlib import Path

EVENT = {"ph": "X", "pid": 1, "tid": 1, "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 5}


def with_torch(folder: Path, version: str) -> Path:
    """Write a capture that a version of torch recorded; return its folder."""
    folder.mkdir()
    manifest = captured(folder, [EVENT]).manifest
    assert manifest is not None
    versions = {"torch": version} if version else {}
    manifest.model_copy(update={"versions": versions}).save(folder / INFO_DIR / "rank_0.info.json")
    return folder


@pytest.mark.parametrize(
    ("version", "remarks"),
    [
        ("2.13.0", []),
        ("", []),
        ("2.15.0", ["1 ran on torch 2.13.0, 2 on torch 2.15.0; kernels may have other names, so "
                    "compare categories, modules and shapes"]),
    ],
)  # fmt: skip
def test_other_versions_of_torch_are_named(
    tmp_path: Path, version: str, remarks: list[str]
) -> None:
    """Their kernels may have other names; a version that is unknown is not another one."""
    one, other = with_torch(tmp_path / "a", "2.13.0"), with_torch(tmp_path / "b", version)
    assert compare(one, other).remarks == remarks


def test_both_windows_are_named(tmp_path: Path) -> None:
    """By their folders, steps and times; the same window twice is called that."""
    one, other = window(tmp_path, 1, 22).path.parent, window(tmp_path, 2, 22).path.parent
    found = compare(one, other)
    for place, name in zip((one, other), found.names, strict=True):
        assert name.startswith(f"{place}: steps 0 to 2, recorded 2026-11-2")
    assert found.remarks == []
    assert compare(one, one).remarks == ["1 and 2 are the same window; give the paths of two"]
