"""Brings into the package what is made when it is built.

The report's chart library, uPlot, from its wheel: so neither its code lies here nor is what its
wheel asks for installed next to a training. And the library of C marks, where there is a compiler.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "dynprof/analysis/report/bundled"
FILES = ("uPlot.iife.js", "uPlot.min.css")
NATIVE = Path("dynprof", "marks", "native")
LIBRARY = NATIVE / "lib" / "libms_tools_ext.so"
PLATFORM = "DYNPROF_WHEEL_PLATFORM"
"""The variable with the platform tag that a released wheel gets; ``CC`` compiles for it then."""
FLAGS = ("-O2", "-std=c11", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")


class BundledParts(BuildHookInterface[Any]):
    """Makes the files before each build, of a wheel and of an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make them, and name them as what git ignores and the wheel has; sources have none."""
        del version
        if self.target_name == "sdist":
            return
        self._copy_charts(build_data)
        released = os.environ.get(PLATFORM)
        if self._compile_marks():
            here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["artifacts"].append(f"/{LIBRARY}")
            # The library is loaded by ctypes: it serves every version of Python.
            build_data["pure_python"], build_data["tag"] = False, f"py3-none-{released or here}"
        elif released:
            raise RuntimeError(f"the library of C marks was not compiled for {released}")

    def _compile_marks(self) -> bool:
        """Return whether there is a library of C marks; an installation works without it."""
        compiler, *options = shlex.split(os.environ.get("CC", "cc"))
        if not shutil.which(compiler) or sys.platform != "linux":
            return False
        target = Path(self.root, LIBRARY)
        target.parent.mkdir(exist_ok=True)
        made = target.with_suffix(".new")
        names = [f"-I{Path(self.root, NATIVE, 'include')}", str(Path(self.root, NATIVE, "mstx.c"))]
        command = [compiler, *options, *FLAGS, *names, "-o", str(made)]
        command += [f"-Wl,-soname,{target.name}"]
        if subprocess.run(command, check=False).returncode:
            return False
        made.replace(target)  # as a new file, for running jobs have the old one open
        return True

    def _copy_charts(self, build_data: dict[str, Any]) -> None:
        found = importlib.util.find_spec("uplot")
        if found is None or found.origin is None:
            raise FileNotFoundError("uplot-python, which building dynprof needs, is not installed")
        target = Path(self.root, TARGET)
        target.mkdir(exist_ok=True)
        for name in FILES:
            shutil.copyfile(Path(found.origin).parent / "static" / name, target / name)
        build_data["artifacts"].append(f"/{TARGET}/*")
