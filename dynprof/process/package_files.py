"""Which files of dynprof work for a profiler, and which have the job's own calls in them."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
_OF_USERS = {"demo"}
"""What lies there stands for a user's own script."""
_AROUND_CALLS = {"integrations", "marks", "phases.py", "plugin", "steps"}
"""A function that ends a step, a phase: what the job does there is not dynprof's work."""


def working_files() -> list[str]:
    """Return the files and folders whose frames are dynprof's work, with all that lies in them."""
    names = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    return sorted(names - _OF_USERS - _AROUND_CALLS - {"__pycache__"})
