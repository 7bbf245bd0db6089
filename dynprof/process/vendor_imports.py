"""Imports of a vendor's modules, answered by dynprof's where the vendor's are not installed."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def answer_import(name: str, module: str) -> None:
    """Let an import find a module of dynprof's in this process, unless there is a real one.

    The import calls its ``install()``, as an import of the vendor's has its effect.

    Args:
        name: What the script imports.
        module: The full name of dynprof's, which is loaded.
    """
    if not any(isinstance(one, _Answer) and one.name == name for one in sys.meta_path):
        sys.meta_path.append(_Answer(name, module))


class _Answer:
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
