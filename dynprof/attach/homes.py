"""Where dynprof and all that it needs lie here, for a process that may not have them."""

from __future__ import annotations

import functools
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

_NAME = re.compile(r"[\w.-]+")
LENT_EXTRAS = ("viztracer",)  # What a window needs in addition to dynprof's requirements.
NOT_LENT = {"typer"}
"""What only commands and analyses need: those run here."""


@functools.cache
def homes() -> dict[str, str]:
    """Return the folder of each top-level module, by its name."""
    found = {"dynprof": str(Path(__file__).parents[2])}
    waiting, seen = ["dynprof", *LENT_EXTRAS], {"dynprof", *LENT_EXTRAS, *NOT_LENT}
    while waiting:
        name = waiting.pop()
        for module in _modules(name):
            if home := _home(module):
                found.setdefault(module, home)
        needed = [one for one in _needed(name) if one not in seen]
        seen.update(needed)
        waiting += needed
    return found


def _modules(name: str) -> set[str]:
    """Return the top-level modules of a distribution."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return set()
    code = [file for file in files if file.suffix in (".py", ".so")]
    names = {file.parts[0].partition(".")[0] for file in code}
    return {name for name in names if name.isidentifier()}


def _needed(name: str) -> list[str]:
    """Return the distributions that one needs without extras."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    return [_plain(m[0]) for line in lines if "extra ==" not in line and (m := _NAME.match(line))]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _home(module: str) -> str | None:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin)
    return str(place.parents[1] if spec.submodule_search_locations else place.parent)
