"""``dynprof mstx``: print where the library and header of C marks are."""

from __future__ import annotations

from typing import Annotated

import typer

from dynprof.cli.outcome import UNREADABLE, fail, say
from dynprof.marks.native.library import FOLDER, HEADERS, MISSING, PATH


def mstx(
    *,
    path: Annotated[
        bool, typer.Option("--path", metavar="", help="Print only the folder of the library.")
    ] = False,
    include: Annotated[
        bool, typer.Option("--include", metavar="", help="Print only the folder of its header.")
    ] = False,
) -> None:
    """Print where the library of C marks and its header are, and how to use them.

    Exit code 0: the library exists. 2: it was not built when dynprof was installed.

    Example: LD_LIBRARY_PATH=$(dynprof mstx --path) python train.py
    """
    if include:
        say(str(HEADERS))
        return
    if not PATH.exists():
        fail(MISSING, UNREADABLE)
    if path:
        say(str(FOLDER))
        return
    say(f"library: {PATH}")
    say(f"header: {HEADERS}/mstx/ms_tools_ext.h")
    say('C and C++: cc -I"$(dynprof mstx --include)" ... -L"$(dynprof mstx --path)" -lms_tools_ext')
    say('Python: LD_LIBRARY_PATH="$(dynprof mstx --path)", then ctypes.CDLL("libms_tools_ext.so")')
