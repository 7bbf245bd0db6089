"""A report on a folder with baselines shows the window that was requested, and says which it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.runs.recorded_window import MAX_BASELINES, newest_window
from dynprof.analysis.runs.window_report import report_on
from tests.unit.analysis.vendor_files.captured import window

if TYPE_CHECKING:
    from pathlib import Path

REQUESTED = 3


def job(place: Path, newer: int) -> Path:
    """Return the folder of a requested window that has baselines before and after it."""
    for hour in range(REQUESTED + newer + 1):
        config = {} if hour == REQUESTED else {"every": {"minutes": 60}}
        path = window(place, hour, 22, **config).path
        os.utime(path, (1000 + hour, 1000 + hour))
        if hour == REQUESTED:
            found = path.parent
    return found


@pytest.mark.parametrize("newer", range(MAX_BASELINES + 1))
def test_a_requested_window_is_read_before_newer_baselines(tmp_path: Path, newer: int) -> None:
    """The folder itself is read if the window is the newest."""
    requested = job(tmp_path, newer)
    found, _ = newest_window(tmp_path)
    assert found == (requested if newer else tmp_path)
    said = report_on(found).window
    assert said.startswith("Steps 0 to 2, recorded 2026-11-2")
    assert "baseline" not in said


def test_a_baseline_is_read_if_the_last_request_is_old(tmp_path: Path) -> None:
    """The report says that it is one."""
    job(tmp_path, MAX_BASELINES + 1)
    found, _ = newest_window(tmp_path)
    assert found == tmp_path
    assert report_on(found).window.endswith(", a baseline.")
