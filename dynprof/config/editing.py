"""Write the first config of a directory; change settings in one without touching the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

from dynprof.config import parse_config, read_source, schema_text, template_text
from dynprof.config.jsontext import join, read_json
from dynprof.errors import ConfigError, Problem
from dynprof.runtime.file_system import is_mount_point
from dynprof.runtime.layout import CONFIG_NAME, SCHEMA_NAME
from dynprof.runtime.safe_open import read_regular
from dynprof.runtime.safe_write import atomic_file, write_atomic, write_if_absent, write_in_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from dynprof.config.file_reading import Source

LOCK_TIMEOUT_S = 10.0
"""Longest wait for the lock, in seconds; a command holds it for milliseconds."""
POLL_S = 0.02
"""Seconds between two tries to take the lock."""
_IS_SYMLINK = (
    "the file is a symbolic link, which a command does not replace; change the file that it points "
    "to, or the ConfigMap mounted there."
)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, so that two commands do not undo each other's changes.

    A file system without locks is used without one.

    Raises:
        OSError: The directory does not exist, or another process holds the lock for too long.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    """Wait for the lock up to the timeout: any user that can read the directory can hold it."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while _is_locked_elsewhere(descriptor):
        if time.monotonic() > deadline_s:
            text = f"another process has held its lock for {LOCK_TIMEOUT_S:.0f} s; see lslocks"
            raise OSError(errno.EAGAIN, text, str(directory))
        time.sleep(POLL_S)


def _is_locked_elsewhere(descriptor: int) -> bool:
    """Try to take the lock; return whether another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # any other error: the file system has no locks
        return isinstance(error, BlockingIOError)
    return False


def change(
    path: Path,
    changes: Mapping[tuple[str, ...], Any],
    resets: Mapping[str, Any] | None = None,
) -> bytes:
    """Change settings of a config atomically, and keep its order, indentation and permissions.

    A config that is itself a mount point is written in place.

    Args:
        path: The config.
        changes: The new value for each path of keys from the top level.
        resets: Top-level keys with a value; a key is set only if the file has it.

    Returns:
        The bytes written.

    Raises:
        FileNotFoundError: The file does not exist.
        ConfigError: The file is invalid, before or after these changes.
        OSError: The file cannot be written.
    """
    if path.is_symlink():
        raise ConfigError([Problem(_IS_SYMLINK)])
    before = read_source(path)
    text = before.raw.decode("utf-8-sig", errors="replace")
    if not _is_object(text) or "\ufffd" in text:
        parse_config(before.raw)  # raises what is wrong with it
    document = json.loads(text)
    for key in set(resets or {}) & set(document):
        document[key] = (resets or {})[key]
    for keys, value in changes.items():
        _set(document, keys, value)
    after = (json.dumps(document, indent=_indent(text), ensure_ascii=False) + "\n").encode()
    try:
        parse_config(after)
    except ConfigError as error:
        raise ConfigError(_in_original(error.problems, text, changes)) from None
    if is_mount_point(path):
        write_in_place(path, after)
        return after
    with atomic_file(path, mode=0o600) as file:
        file.write(after)
        _copy_permissions(file.fileno(), before)
    return after


def _in_original(
    problems: Iterable[Problem], text: str, changes: Mapping[tuple[str, ...], Any]
) -> Iterator[Problem]:
    """Return problems with their places in the original file; changed settings get no place."""
    places = read_json(text).places
    set_here = {functools.reduce(join, keys, "") for keys in changes}
    for problem in problems:
        is_there = problem.pointer and problem.pointer not in set_here
        line, column = places.get(problem.pointer, (0, 0)) if is_there else (0, 0)
        yield dataclasses.replace(problem, line=line, column=column)


def _is_object(text: str) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        return isinstance(json.loads(text), dict)
    return False


def _set(document: Any, keys: tuple[str, ...], value: Any) -> None:
    *sections, key = keys
    for section in sections:
        if not isinstance(document.get(section), dict):
            document[section] = {}
        document = document[section]
    document[key] = value


def _indent(text: str) -> int:
    first = re.search(r"\n( +)\S", text)
    return len(first.group(1)) if first else 4


def _copy_permissions(descriptor: int, before: Source) -> None:
    """Give a new file the owner, group and permissions of the file that it replaces.

    The setuid, setgid and sticky bits are not copied: they mean nothing for a config.

    Raises:
        PermissionError: The old owner, which is the job's user, could not read the new file.
    """
    for owner, group in ((-1, before.group), (before.owner or 0, -1)):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, owner, group)
    os.fchmod(descriptor, before.mode)
    now = os.fstat(descriptor)
    by_group = now.st_gid == before.group and now.st_mode & 0o040
    if now.st_uid != before.owner and not by_group and not now.st_mode & 0o004:
        raise PermissionError(
            errno.EPERM, "the job could not read a file that another user puts in its place"
        )


def write_starter_files(root: Path, activities: tuple[str, ...] = ()) -> bool:
    """Write the files that do not exist yet; if many ranks start at once, one rank writes.

    Args:
        root: The directory, which must exist.
        activities: What the template records; empty: everything that the machine has.

    Returns:
        Whether this call wrote the config.

    Raises:
        OSError: The directory is not writable.
    """
    template = template_text(activities)
    parse_config(template.encode())  # imports now what the first edit would import during training
    path, schema = root / SCHEMA_NAME, schema_text()
    if not _holds(path, schema.encode()):
        write_atomic(path, schema)
    config = root / CONFIG_NAME
    return not os.path.lexists(config) and write_if_absent(config, template)


def _holds(path: Path, content: bytes) -> bool:
    with contextlib.suppress(OSError):
        return read_regular(path, len(content), follow_symlinks=True) == content
    return False
