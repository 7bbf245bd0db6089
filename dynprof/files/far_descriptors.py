"""Descriptors with high numbers: what a script opens after it has closed them all has low ones.

The system gives the lowest free number to whoever opens something. So a script that closes by
number, as daemons do, may be given one that a thread of dynprof's was about to write to or to
close; with a high one that thread finds it closed, and no more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LAST_STREAM = 2
"""The last descriptor of the standard streams: closed ones are given to whoever opens something."""
_ALWAYS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_SAYS_SO = os.O_NONBLOCK | os.O_PATH
"""Flags that only what is opened here has: the second is that of a folder nobody reads."""
_MOST = 4096
"""The system keeps a table up to the highest number, and copies it at each fork."""
_ROOM = 128
"""So many numbers from the highest on are for what is opened here."""


def opened(path: str | Path, flags: int, mode: int = 0, *, folder: int | None = None) -> int:
    """Open something as :func:`os.open` does, without waiting, under a high number.

    Raises:
        OSError: It cannot be opened; EBADF where the script closed it in that moment.
    """
    near = os.open(path, flags | _ALWAYS, mode, dir_fd=folder)
    far = _far_from(near, _ROOM)
    if far != near:
        if _is_own(near):
            os.close(near)
        elif not _is_own(far):  # it was the script's before
            os.close(far)
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(path))
    return far


def moved_far(near: int) -> int:
    """Return another descriptor of the same with a high number, in the place of this one.

    It is none that :func:`opened` gives, also where somebody else uses it once it was closed.
    """
    far = _far_from(near, _ROOM + _ROOM // 2)
    if far != near:
        os.close(near)
    return far


def _far_from(near: int, room: int) -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(allowed, _MOST) if allowed > 0 else _MOST  # it is negative where there is no limit
    for least in (max(most - room, LAST_STREAM + 1), LAST_STREAM + 1):
        with contextlib.suppress(OSError):  # none is left there
            return fcntl.fcntl(near, fcntl.F_DUPFD_CLOEXEC, least)
    return near


def _is_own(descriptor: int) -> bool:
    """Only who says so at each opening, as is done here, has a file that does not wait."""
    with contextlib.suppress(OSError):
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & _SAYS_SO)
    return False
