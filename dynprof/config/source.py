"""The bytes of a config file, read without trusting what lies in its place."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1 << 20
"""The vendor's limit as well; a config with every key has 2 KB."""

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True)
class Source:
    """What one reading of the file found.

    Attributes:
        raw: The bytes of the file.
        inode: The file's serial number; an atomic replace changes it.
        mtime_ns: Time of the last write, in ns since the epoch.
    """

    raw: bytes
    inode: int
    mtime_ns: int


def read_source(path: Path) -> Source:
    """Read a config file: a regular file of at most 1 MiB that not everybody may write.

    The checks are made on the opened descriptor, so that what was checked is what is read; a
    FIFO without a writer does not block.

    Raises:
        FileNotFoundError: Nothing is there.
        ConfigError: Something is there that is not read, with the reason.
    """
    try:
        raw, facts = _read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError([Problem(_why_not_read(error))]) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError([Problem(_TOO_LARGE)])
    return Source(raw, facts.st_ino, facts.st_mtime_ns)


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    with os.fdopen(os.open(path, _FLAGS), "rb") as file:
        facts = os.fstat(file.fileno())
        if refusal := _why_refused(facts):
            raise ConfigError([Problem(refusal)])
        return file.read(MAX_BYTES + 1), facts


_TOO_LARGE = "the file is larger than 1 MiB, which no config is; it was not read."


def _why_not_read(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "the file is a symbolic link, which is not followed; put the file itself here."
    if error.errno == errno.EISDIR:
        return "a directory stands in the place of the file; put a regular file here."
    if error.errno == errno.ENXIO:
        return "a socket stands in the place of the file; put a regular file here."
    return f"the file cannot be read: {os.strerror(error.errno or 0)}."


def _why_refused(facts: os.stat_result) -> str | None:
    if not stat.S_ISREG(facts.st_mode):
        kind = "a named pipe (FIFO)" if stat.S_ISFIFO(facts.st_mode) else "a device"
        return f"{kind} stands in the place of the file; put a regular file here."
    if facts.st_mode & stat.S_IWOTH:
        return "everybody may write the file; run chmod o-w on it."
    if facts.st_size > MAX_BYTES:
        return _TOO_LARGE
    return None
