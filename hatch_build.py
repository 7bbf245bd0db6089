"""Brings the report's chart library into the package when it is built: uPlot, from its wheel.

So that neither its code lies here nor what its wheel asks for is installed beside a training.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "dynprof/analysis/report/bundled"
FILES = ("uPlot.iife.js", "uPlot.min.css")


class BundledParts(BuildHookInterface[Any]):
    """Copies the files before each build, of a wheel and of an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Copy them, and name them as what git ignores and the wheel has."""
        del version
        found = importlib.util.find_spec("uplot")
        if found is None or found.origin is None:
            raise FileNotFoundError("uplot-python, which building dynprof needs, is not installed")
        target = Path(self.root, TARGET)
        target.mkdir(exist_ok=True)
        for name in FILES:
            shutil.copyfile(Path(found.origin).parent / "static" / name, target / name)
        build_data["artifacts"].append(f"/{TARGET}/*")
