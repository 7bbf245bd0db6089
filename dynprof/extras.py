"""The extras of dynprof: parts that need further packages."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys

from dynprof.errors import MissingExtraError
from dynprof.runtime.plural import all_of

PACKAGES = {
    "analysis": ("duckdb", "numpy"),
    "attach": ("elftools",),
    "python": ("viztracer",),
    "serve": (
        "duckdb",
        "mcp",
        "numpy",
        "opentelemetry",
        "prometheus_client",
        "starlette",
        "uvicorn",
    ),
    "viewer": ("duckdb", "numpy", "viztracer"),
}
"""The modules of each extra that a message names; others of ``pyproject.toml`` have their own."""


def missing(extra: str, part: str) -> str:
    """Return the error message if a package of an extra is not installed; else empty.

    Args:
        extra: A key of :data:`PACKAGES`.
        part: The part that needs the packages, as the subject of the message.
    """
    absent = [name for name in PACKAGES[extra] if not _is_installed(name)]
    return install(part, all_of(absent), extra) if absent else ""


def _is_installed(name: str) -> bool:
    return sys.modules[name] is not None if name in sys.modules else _is_found(name)


@functools.cache
def _is_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a finder that blocks imports raises
        return False


def find_all_packages() -> None:
    """Look for the packages of all extras, so that no thread of dynprof does so later."""
    for name in set(itertools.chain(*PACKAGES.values())):
        _is_installed(name)


def require(extra: str, part: str) -> None:
    """Check that the packages of an extra are installed.

    Raises:
        MissingExtraError: A package is missing; the message has the command that installs it.
    """
    if text := missing(extra, part):
        raise MissingExtraError(text)


def install(part: str, package: str, extra: str) -> str:
    """Return the error message of a part whose package is missing."""
    return f"{part} needs {package}; install it with: pip install 'dynprof[{extra}]'"
