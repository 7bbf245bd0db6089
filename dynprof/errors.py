"""What can go wrong, as a tree, and the sentence that tells a person about it.

::

    DynprofError
    ├── ConfigError        a config that cannot be used; carries every Problem found in it
    ├── UnusablePathError  ``init()`` was given a directory it cannot work in
    ├── BackendError       a profiler could not be prepared, started, stopped or saved
    ├── LostWindowError    a window had to be let go, though its profiler did not fail
    ├── CaptureError       a capture cannot be read, or its files cannot be written
    ├── LaunchError        a command, or a process, cannot be made to watch
    ├── OwnerError         root's command cannot act as the user who owns a folder
    ├── MissingExtraError  a package that pip installs as an extra is missing
    ├── SessionError       a call of ``dynprof.acl`` came out of order
    └── ProfileError       a call of ``dynprof.profiler`` came out of order
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Problem:
    """One thing to say about a config: what, where, and what to write instead.

    Attributes:
        text: A whole sentence for the person who edited the file.
        pointer: JSON pointer (RFC 6901) of the place, ``""`` for the whole document.
        line: Line in the file, from 1; 0 where no line can be named.
        column: Column in the line, from 1; 0 where no line can be named.
    """

    text: str
    pointer: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """Return ``line 3, column 5, /active: ...`` with the parts that are known."""
        where = [f"line {self.line}, column {self.column}"] if self.line else []
        if self.pointer:
            where.append(self.pointer)
        text = f"{', '.join(where)}: {self.text}" if where else self.text
        return text.encode("utf-8", "replace").decode()  # a key may hold half a surrogate pair


class DynprofError(Exception):
    """Whatever dynprof raises on purpose."""


class ConfigError(DynprofError):
    """A config that cannot be used.

    Attributes:
        problems: Everything that was found wrong, in the order of the file.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class UnusablePathError(DynprofError):
    """``init()`` was given a directory it cannot work in."""


class BackendError(DynprofError):
    """A profiler could not be prepared, started, stopped or saved."""


class LostWindowError(DynprofError):
    """A window had to be let go, though its profiler did not fail."""


class CaptureError(DynprofError):
    """A capture cannot be read, or its files cannot be written."""


class LaunchError(DynprofError):
    """A command, or a process, cannot be made to watch."""


class RemovedError(DynprofError, OSError):
    """What a process of dynprof's own would run was removed since this one began."""


class OwnerError(DynprofError):
    """A command that root runs cannot act as the user who owns a folder."""


class MissingExtraError(DynprofError, ModuleNotFoundError):
    """A package that pip installs as an extra of dynprof is missing."""


class SessionError(DynprofError):
    """A call of :mod:`dynprof.acl` came out of order; it changed nothing."""


class ProfileError(DynprofError, RuntimeError):
    """A call of :mod:`dynprof.profiler` came out of order; it changed nothing."""


def describe(error: BaseException) -> str:
    """Return an exception in words.

    An error of the system is its path and reason; the class of another one is named where we did
    not raise it on purpose.
    """
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{where}{reason(error)}"
    text = str(error)
    if text and isinstance(error, DynprofError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def reason(error: BaseException) -> str:
    """Return what an error says, without path and number where it is one of the system."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error)


def why_not_written(error: OSError) -> str:
    """Say why a file was not written; what the user may not write is named as that."""
    if error.errno in (errno.EACCES, errno.EPERM) and error.filename is not None:
        return f"{os.fsdecode(error.filename)} cannot be written by this user"
    return describe(error) if error.strerror else str(error)


def internal_failure(error: Exception) -> str:
    """Return what became of a request where a bug or an odd moment hindered it."""
    return f"dynprof failed at it: {describe(error)}"
