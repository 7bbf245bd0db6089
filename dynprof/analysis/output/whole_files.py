"""The folders that analysis writes in."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from dynprof.files.folders import make_dir
from dynprof.files.layout import ANALYSIS_DIR, VENDORS_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ANALYSIS_DIR
"""Beside a trace; what is made from it lies there, in a folder of the trace's name."""


def own_folder(folder: Path) -> None:
    """Create a folder that analysis writes in, and its parents.

    Raises:
        OSError: It cannot be made, or up to :data:`FOLDER`, or below a folder named as the
            vendor's, is a link, which may lead anywhere.
    """
    for place in (folder, *folder.parents):
        if place.name.endswith(VENDORS_FOLDER):
            break
        if place.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link, which is not followed", str(place))
        if place.name == FOLDER:
            break
    make_dir(folder)
