"""Analysis of captures, on any machine: manifests and traces are its only input.

Input: traces, also those that dynprof did not write. Output: tables, databases, stacks and pages.
It never imports a session, a backend or torch, and never changes a trace. The stages are
``reading``, ``measures``, ``vendor_files``, ``rank_comparison``, ``findings``, ``sql_views`` and
``report``. ``runs`` executes them for one capture or for thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.extras import require

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.analysis.runs.query import Views

require("analysis", "the analysis")  # before any of its modules imports numpy


def load(path: Path | str, *later: Path | str, all_windows: bool = False) -> Views:
    """Return the views of captures: tables of events, operators, kernels and more, for SQL.

    Args:
        path: A trace, or a folder with captures.
        later: More of them, to compare before and after; ``windows.age`` is 1 for the last.
        all_windows: Whether to read all windows below a folder; by default the newest one.

    Raises:
        CaptureError: There is no trace that can be read, or a path is given twice.
    """
    from dynprof.analysis.runs.query import load as load_views

    return load_views(path, *later, all_windows=all_windows)
