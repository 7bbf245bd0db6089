"""Read the bytes of a config file, without trusting the file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.errors import ConfigError, Problem
from dynprof.runtime.permissions import is_trusted, may_be_emptied, trusts_all_users
from dynprof.runtime.safe_open import NotRegularError, descriptor_of, read_at_most

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1 << 20
"""Largest config in bytes, as with the vendor; a config with every key has 2 KB."""
_TOO_LARGE = "the file is larger than 1 MiB, the limit for a config; it was not read."


@dataclass(frozen=True)
class Source:
    """The content and the facts that one reading of the file found.

    Attributes:
        raw: The bytes of the file.
        inode: Its inode number; an atomic replace changes it.
        mtime_ns: Time of the last write, in ns since the epoch.
        owner: User id of its owner; a change of the owner alone is not a save.
        group: Its group id.
        mode: Its permissions, without the setuid, setgid and sticky bits.
        ctime_ns: Time of the last change of content or metadata, in ns since the epoch. A change
            of this time alone is not a save.
    """

    raw: bytes
    inode: int
    mtime_ns: int
    owner: int | None = field(default=None, compare=False)
    group: int = field(default=-1, compare=False)
    mode: int = field(default=0, compare=False)
    ctime_ns: int = field(default=0, compare=False)


def read_source(path: Path, *, follow_symlinks: bool = False, as_job: bool = False) -> Source:
    """Read a config: a regular file of at most 1 MiB that is not writable or replaceable by all.

    The checks run on the opened descriptor, so that the checked file is the one that is read. A
    FIFO without a writer does not block. The file must belong to the job's user or root. In a
    directory that is group-writable but not world-writable, it may also belong to another user.

    Args:
        path: The file.
        follow_symlinks: Read it through a symbolic link, as in a Kubernetes ConfigMap.
        as_job: This process runs as the job's user; if not, the directory's owner is trusted too.

    Raises:
        FileNotFoundError: The file does not exist.
        ConfigError: The file is refused, with the reason.
    """
    try:
        raw, facts = _read(path, follow_symlinks=follow_symlinks, as_job=as_job)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError([Problem(_why_not_read(path, error))]) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError([Problem(_TOO_LARGE)])
    whose = facts.st_uid, facts.st_gid, facts.st_mode & 0o777
    return Source(raw, facts.st_ino, facts.st_mtime_ns, *whose, facts.st_ctime_ns)


def _read(path: Path, *, follow_symlinks: bool, as_job: bool) -> tuple[bytes, os.stat_result]:
    # Few system calls: after each, this thread must take the GIL back from the training.
    descriptor, facts = descriptor_of(path, follow_symlinks=follow_symlinks)
    try:
        if as_job and path.parent.is_symlink():  # init() resolved it, so it was none then
            raise ConfigError([Problem(f"{path.parent} has become a symbolic link.")])
        folders = {path.parent, path.resolve().parent} if follow_symlinks else {path.parent}
        refusal = _why_refused(facts)
        for folder in sorted(folders):
            refusal = refusal or _why_replaceable(folder, facts, as_job=as_job)
        if refusal:
            raise ConfigError([Problem(refusal)])
        return read_at_most(descriptor, facts.st_size, MAX_BYTES), facts
    finally:
        os.close(descriptor)


def _why_not_read(path: Path, error: OSError) -> str:
    if error.errno == errno.ELOOP:
        text = "the file is a symbolic link, which is not followed; put the file itself here"
        return f"{text}, or call init(follow_symlinks=True) in the script."
    if isinstance(error, NotRegularError):
        return f"{error.strerror}; put a regular file here."
    if error.errno == errno.EACCES:
        with contextlib.suppress(OSError):
            return _why_denied(path.stat())
    return f"the file cannot be read: {os.strerror(error.errno or 0)}."


def _why_denied(facts: os.stat_result) -> str:
    text = f"the file cannot be read by uid {os.geteuid()}: it belongs to uid {facts.st_uid}"
    mode = stat.S_IMODE(facts.st_mode)
    shared = facts.st_gid in (os.getegid(), *os.getgroups())
    how = "chmod g+r" if shared else f"chgrp with a group of uid {os.geteuid()}, then chmod g+r"
    if facts.st_uid == os.geteuid():
        how = "chmod u+r"
    return f"{text}, gid {facts.st_gid}, and has mode {mode:04o}; run {how} on it."


def _why_refused(facts: os.stat_result) -> str | None:
    if facts.st_mode & stat.S_IWOTH and not trusts_all_users():
        return "any user can write the file; run chmod o-w on it."
    if facts.st_size > MAX_BYTES:
        return _TOO_LARGE
    return None


def _why_replaceable(folder: Path, file: os.stat_result, *, as_job: bool) -> str | None:
    """Return why the file may not be from the job's user, root or a group member; None if it is."""
    facts = folder.stat()
    if may_be_emptied(facts):
        return "any user can replace the file; run chmod o-w on its directory."
    if as_job and not is_trusted(facts.st_uid):
        text = f"the file is in {folder}, which belongs to uid {facts.st_uid}"
        return f"{text}; put it into a directory of the job's user."
    by_group = facts.st_mode & stat.S_IWGRP and not facts.st_mode & stat.S_IWOTH
    if is_trusted(file.st_uid) or by_group or (not as_job and file.st_uid == facts.st_uid):
        return None
    text = f"the file belongs to uid {file.st_uid}, which may not request captures"
    return f"{text}; save it as the job's user, or as root."
