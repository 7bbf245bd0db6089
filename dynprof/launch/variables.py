"""The environment variables that make a process watch a directory, and the file that reads them."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.runtime.output import write_atomic
from dynprof.steps.source import VARIABLE as STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = "DYNPROF_CONFIG"
VENDORS_CONFIG = "PROF_CONFIG_PATH"
"""The same variable of torch_npu."""
WATCHED = "DYNPROF_WATCHED"
"""Set by a watching process for its children: its PID and its rank."""
HOOK = Path(__file__).parent / "interpreter_hook"
"""Folder for ``PYTHONPATH`` that makes interpreters start a session."""

__all__ = [
    "CONFIG", "STEPS", "VENDORS_CONFIG", "WATCHED", "effective_variable", "requested_directory",
]  # fmt: skip
_BEGIN = (
    "import sys\n"
    "before = set(sys.modules)\n"
    "import importlib.util as u\n"
    "if u.find_spec('dynprof'):\n"
    "    from dynprof.launch.startup import begin; begin(before)"
)
LINE = (
    f"import os; ({CONFIG!r} in os.environ or {VENDORS_CONFIG!r} in os.environ) and "
    f"exec({_BEGIN!r}, {{}})\n"
)
"""The line of the file; rarely needed code is a string, because compiling it costs the most."""


def effective_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable whose directory is watched, if any is set."""
    return CONFIG if environ.get(CONFIG) else VENDORS_CONFIG


def requested_directory(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the directory to watch, empty for none, and why the vendor's variable is ignored.

    The reason is empty if the variable is used, is not set, or names the same directory.
    """
    own, vendors = environ.get(CONFIG, ""), environ.get(VENDORS_CONFIG, "")
    if own:
        differs = vendors not in ("", own)
        text = f"{VENDORS_CONFIG}={vendors} is not watched; {CONFIG} takes precedence"
        return own, text if differs else ""
    if vendors and importlib.util.find_spec("torch_npu"):
        text = f"{VENDORS_CONFIG}={vendors} is not watched; torch_npu is installed and reads it"
        return "", text
    return vendors, ""


def pth_file() -> Path:
    """Return the path of the file, which may not exist."""
    return Path(sysconfig.get_path("purelib")) / "zz_dynprof.pth"


def is_installed() -> bool:
    """Return whether the file exists."""
    return pth_file().is_file()


def install() -> Path:
    """Write the file and return its path.

    Raises:
        OSError: It cannot be written.
    """
    path = pth_file()
    write_atomic(path, LINE, mode=0o644)
    return path


def uninstall() -> bool:
    """Remove the file; return whether it existed.

    Raises:
        OSError: It cannot be removed.
    """
    there = is_installed()
    pth_file().unlink(missing_ok=True)
    return there
