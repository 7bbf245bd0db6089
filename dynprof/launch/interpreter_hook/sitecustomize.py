"""Starts a session before the script, on the ``PYTHONPATH`` of jobs that ``dynprof run`` starts.

Python imports a module of this name when it starts. If another one exists on the path, this module
imports it too.
"""

import os
import sys


def _import_original() -> None:
    """Import the next module of this name on the path, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - costs each start
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]  # noqa: PTH100
    this = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    sys.modules.setdefault(__name__, this)


def _begin() -> None:
    """Start a session, if dynprof is installed."""
    before = set(sys.modules)
    try:
        from dynprof.launch.startup import begin
    except ModuleNotFoundError as error:
        if not os.environ.get("DYNPROF_WATCHED"):
            text = f"dynprof: {error.name} is not installed for {sys.executable}"
            print(f"{text}; this process runs unwatched", file=sys.stderr)
    else:
        begin(before)


if os.environ.get("DYNPROF_CONFIG"):
    _begin()
_import_original()
