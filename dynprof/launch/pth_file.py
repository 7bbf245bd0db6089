"""The file that makes every interpreter of an environment read ``DYNPROF_CONFIG`` when it starts.

Python runs the lines of a ``.pth`` file in its site directory that begin with ``import``. Our line
reads two variables, and does nothing else if neither is set. The file's name sorts last: packages
that other ``.pth`` files add can be imported by then.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from dynprof.launch.variables import CONFIG, VENDORS_CONFIG
from dynprof.runtime.output import write_atomic

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
