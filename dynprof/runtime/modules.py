"""Modules of other packages: replaced by dynprof's, half imported, or shadowed."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from types import ModuleType

PACKAGE = Path(__file__).parents[1]
_USER_SCRIPTS = {"cli"}
"""Folders whose frames are not dynprof's work: in a job, only the scripts of ``cli/demo/`` run."""
_AROUND_CALLS = {"integrations", "marks/annotation.py", "phases.py", "plugin", "steps"}
"""Functions that end a step or a phase: the job's code that runs in them is not dynprof's work."""


def alias_import(name: str, module: str) -> None:
    """Let an import of a name find dynprof's module in this process, unless a real one exists.

    The import calls the module's ``install()``, because an import of the vendor's has effects too.

    Args:
        name: What the script imports.
        module: The full name of dynprof's module, which is loaded.
    """
    if not any(isinstance(one, _Alias) and one.name == name for one in sys.meta_path):
        sys.meta_path.append(_Alias(name, module))


class _Alias:
    """Finds and loads one module; Python asks it last."""

    def __init__(self, name: str, module: str) -> None:
        self.name, self._module = name, module

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        """Return the spec of its module; None for all others."""
        return ModuleSpec(name, self) if name == self.name else None  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        """Let Python create a module, which :meth:`exec_module` replaces."""

    def exec_module(self, _made: ModuleType) -> None:
        """Replace the created module by dynprof's."""
        sys.modules[self.name] = sys.modules[self._module]
        sys.modules[self.name].install()


def imported_module(name: str) -> Any:
    """Return a module; None if it is not imported, or another thread is importing it.

    Importing a part of a package during that can leave the script with half-made modules.
    """
    module = sys.modules.get(name)
    is_half = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_half else module


def unload_shadowed(before: Collection[str], folders: Iterable[str]) -> None:
    """Unload modules of Python's library that hide modules of the same names of the job.

    Code that has imported them keeps them.

    Args:
        before: The modules that were loaded before dynprof.
        folders: The job's import path; only entries before Python's library count.
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
    return spec is not None and spec.loader is not None  # a plain folder is searched last


def working_files() -> list[str]:
    """Return the files and folders whose frames are dynprof's work, with all files in them."""
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
    """Return the files and folders whose functions call the job's own code."""
    return sorted(_AROUND_CALLS)
