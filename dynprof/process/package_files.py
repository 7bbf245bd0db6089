"""Which files of dynprof work for a profiler, and which have the job's own calls in them."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
_OF_USERS = {"demo"}
"""What lies there stands for a user's own script."""
_AROUND_CALLS = {"integrations", "marks/annotation.py", "phases.py", "plugin", "steps"}
"""A function that ends a step, a phase: what the job does there is not dynprof's work."""


def working_files() -> list[str]:
    """Return the files and folders whose frames are dynprof's work, with all that lies in them."""
    mixed = {name.split("/")[0] for name in _AROUND_CALLS if "/" in name}
    parts = [PACKAGE, *(PACKAGE / name for name in mixed)]
    names = {
        path.relative_to(PACKAGE).as_posix()
        for part in parts
        for path in part.iterdir()
        if path.suffix == ".py" or path.is_dir()
    }
    caches = {name for name in names if name.endswith("__pycache__")}
    return sorted(names - _OF_USERS - _AROUND_CALLS - mixed - caches)


def around_calls() -> list[str]:
    """Return the files and folders whose functions have the job's own calls in them."""
    return sorted(_AROUND_CALLS)
