"""Lies on ``PYTHONPATH`` where ``dynprof run`` started a job: begins a session before the script.

Python imports a module of this name as it starts. One that another place on the path has for it is
imported as if this one were not there.
"""

import os
import sys


def _import_the_one_behind() -> None:
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
    """Begin a session, if dynprof is there."""
    before = set(sys.modules)
    try:
        from dynprof.launch.startup import begin
    except ModuleNotFoundError as error:
        if not os.environ.get("DYNPROF_WATCHED"):
            text = f"dynprof: {error.name} is not installed for {sys.executable}"
            print(f"{text}, which runs unwatched", file=sys.stderr)
    else:
        begin(before)


if os.environ.get("DYNPROF_CONFIG"):
    _begin()
_import_the_one_behind()
