"""Modules of other packages: a vendor's answered by dynprof's, half imported, shadowed."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from types import ModuleType


def alias_import(name: str, module: str) -> None:
    """Let an import find a module of dynprof's in this process, unless there is a real one.

    The import calls its ``install()``, as an import of the vendor's has its effect.

    Args:
        name: What the script imports.
        module: The full name of dynprof's, which is loaded.
    """
    if not any(isinstance(one, _Alias) and one.name == name for one in sys.meta_path):
        sys.meta_path.append(_Alias(name, module))


class _Alias:
    """Finds and loads one module, the last of all that are asked for it."""

    def __init__(self, name: str, module: str) -> None:
        self.name, self._module = name, module

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        """Return where a module is; None for each but its own."""
        return ModuleSpec(name, self) if name == self.name else None  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        """Let Python make one, which :meth:`exec_module` replaces."""

    def exec_module(self, _made: ModuleType) -> None:
        """Put dynprof's module in its place."""
        sys.modules[self.name] = sys.modules[self._module]
        sys.modules[self.name].install()


def imported_module(name: str) -> Any:
    """Return a module; None where it was not imported, or another thread is importing it.

    To import a part of a package in between can leave the script with half-made modules.
    """
    module = sys.modules.get(name)
    is_half = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_half else module


def unload_shadowed(before: Collection[str], folders: Iterable[str]) -> None:
    """Let the job load its own modules where dynprof has loaded Python's of the same names.

    Whoever has those already keeps them.

    Args:
        before: The modules that were there before dynprof was loaded.
        folders: The path that the job's imports follow; what stands before Python's library counts.
    """
    names = {name for name in list(sys.modules) if "." not in name} & sys.stdlib_module_names
    loaded = names.difference(before, sys.builtin_module_names)
    library = Path(os.__file__).parent
    for folder in folders:
        if Path(folder) == library:
            return
        for name in [one for one in loaded if _has(folder, one)]:
            loaded.discard(name)
            for full in [one for one in list(sys.modules) if one.partition(".")[0] == name]:
                if full not in before:
                    del sys.modules[full]


def _has(folder: str, name: str) -> bool:
    spec = PathFinder.find_spec(name, [folder])
    return spec is not None and spec.loader is not None  # a folder alone goes behind all others


PACKAGE = Path(__file__).parents[1]
_USER_SCRIPTS = {"demo"}
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
    return sorted(names - _USER_SCRIPTS - _AROUND_CALLS - mixed - caches)


def around_calls() -> list[str]:
    """Return the files and folders whose functions have the job's own calls in them."""
    return sorted(_AROUND_CALLS)
