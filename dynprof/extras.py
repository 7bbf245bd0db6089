"""The extras of dynprof: parts that need more packages than a job does."""

from __future__ import annotations

import importlib.util

from dynprof.errors import MissingExtraError

PACKAGES = {
    "analysis": ("duckdb", "numpy"),
    "attach": ("elftools",),
    "python": ("viztracer",),
    "viewer": ("duckdb", "numpy", "viztracer"),
}
"""The modules without which an extra of ``pyproject.toml`` cannot work."""


def missing(extra: str, part: str) -> str:
    """Return the error message where a package of an extra is not installed; else nothing.

    Args:
        extra: A key of :data:`PACKAGES`.
        part: What needs the packages, as the subject of the message.
    """
    absent = [name for name in PACKAGES[extra] if importlib.util.find_spec(name) is None]
    return install(part, " and ".join(absent), extra) if absent else ""


def require(extra: str, part: str) -> None:
    """Check that the packages of an extra are installed.

    Raises:
        MissingExtraError: One is not; the message names the command that installs it.
    """
    if text := missing(extra, part):
        raise MissingExtraError(text)


def install(part: str, package: str, extra: str) -> str:
    """Return the error message of a part whose package is missing."""
    return f"{part} needs {package}; install it with: pip install 'dynprof[{extra}]'"
