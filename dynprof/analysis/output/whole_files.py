"""Files that appear whole, in folders that are dynprof's own."""

from __future__ import annotations

import contextlib
import errno
import secrets
from typing import TYPE_CHECKING

from dynprof.files.layout import make_dir, make_private, open_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = "analysis"
"""Beside a trace; what is made from it lies there, in a folder of the trace's name."""


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a file of this process alone to write, which then takes the path's place.

    A link that lies there is replaced, never followed.

    Raises:
        OSError: It cannot be written.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    open_private(temporary).close()
    try:
        yield temporary
        make_private(temporary)  # a library may have put a file of its own there, as DuckDB does
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def own_folder(folder: Path) -> None:
    """Create a folder that analysis writes in, and its parents.

    Raises:
        OSError: It cannot be made, or up to :data:`FOLDER` is a link, which may lead anywhere.
    """
    for place in (folder, *folder.parents):
        if place.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link, which is not followed", str(place))
        if place.name == FOLDER:
            break
    make_dir(folder)
