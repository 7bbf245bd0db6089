"""The exceptions of dynprof, as a tree, and error messages for users.

::

    DynprofError
    ├── ConfigError        a config that cannot be used; carries every Problem found in it
    ├── UnusablePathError  ``init()`` was given a directory it cannot work in
    ├── BackendError       a profiler could not be prepared, started, stopped or saved
    ├── LostWindowError    a window had to be discarded, though its profiler did not fail
    ├── CaptureError       a capture cannot be read, or its files cannot be written
    ├── QueryError         a SQL statement over captures is wrong, or its result cannot be returned
    ├── NotLoggedError     a job's log cannot say who asked for a change, so it was not made
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
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """One problem of a config: what, where, and what to write instead.

    Attributes:
        text: A whole sentence for the user who edited the file.
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
    """Base class of all exceptions that dynprof raises on purpose."""


class ConfigError(DynprofError):
    """A config that cannot be used.

    Attributes:
        problems: All problems found, in the order of the file.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class UnusablePathError(DynprofError):
    """``init()`` was given a directory it cannot work in."""


class BackendError(DynprofError):
    """A profiler could not be prepared, started, stopped or saved."""


class LostWindowError(DynprofError):
    """A window had to be discarded, though its profiler did not fail."""


class CaptureError(DynprofError):
    """A capture cannot be read, or its files cannot be written."""


class QueryError(DynprofError):
    """A SQL statement over captures is wrong, or its result cannot be returned as requested."""


class NotLoggedError(DynprofError):
    """The log of a job cannot say who asked for a change, so the change was not made."""


class LaunchError(DynprofError):
    """A command, or a process, cannot be made to watch."""


class RemovedError(DynprofError, OSError):
    """The program of a helper process was removed since this process began."""


class OwnerError(DynprofError):
    """A command that root runs cannot act as the user who owns a folder."""


class MissingExtraError(DynprofError, ModuleNotFoundError):
    """A package that pip installs as an extra of dynprof is missing."""


class SessionError(DynprofError):
    """A call of :mod:`dynprof.acl` came out of order; it changed nothing."""


class ProfileError(DynprofError, RuntimeError):
    """A call of :mod:`dynprof.profiler` came out of order; it changed nothing."""


def describe(error: BaseException) -> str:
    """Return an exception as a message.

    A system error becomes its path and reason. Other errors include their class, unless dynprof
    raised them on purpose.
    """
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{where}{reason(error)}"
    text = str(error)
    if text and isinstance(error, DynprofError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def with_paths(problems: Mapping[Path, str]) -> list[str]:
    """Return what is wrong with files, each with its path, once."""
    return [why if str(path) in why else f"{path}: {why}" for path, why in problems.items()]


def reason(error: BaseException) -> str:
    """Return the message of an error; for a system error without its path and number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error)


def why_not_written(error: OSError) -> str:
    """Return why a file was not written, and say so if the user has no permission."""
    if error.errno in (errno.EACCES, errno.EPERM) and error.filename is not None:
        return f"{os.fsdecode(error.filename)} cannot be written by this user"
    return describe(error) if error.strerror else str(error)


def internal_failure(error: Exception) -> str:
    """Return the outcome of a request at which dynprof failed unexpectedly."""
    return f"dynprof failed at it: {describe(error)}"
