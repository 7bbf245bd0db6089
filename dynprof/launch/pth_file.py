"""The file that has every interpreter of an environment look at ``DYNPROF_CONFIG`` as it starts.

Python runs the lines of a ``.pth`` file in its site directory that begin with ``import``; ours asks
for two variables, and for nothing else where neither is set. Its name is the last in the
directory's order: packages that are found by such files are found then.
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
"""What is not needed is a string in it: to compile that takes longer than all the rest."""


def pth_file() -> Path:
    """Return where it lies, or would."""
    return Path(sysconfig.get_path("purelib")) / "zz_dynprof.pth"


def is_installed() -> bool:
    """Return whether it is there."""
    return pth_file().is_file()


def install() -> Path:
    """Write it; return where.

    Raises:
        OSError: It cannot be written.
    """
    path = pth_file()
    write_atomic(path, LINE, mode=0o644)
    return path


def uninstall() -> bool:
    """Remove it; return whether it was there.

    Raises:
        OSError: It cannot be removed.
    """
    there = is_installed()
    pth_file().unlink(missing_ok=True)
    return there
