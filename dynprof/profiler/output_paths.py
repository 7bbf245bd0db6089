"""Paths of a script's traces: symbolic links, replacing files, and leftovers."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError, why_not_written
from dynprof.runtime.layout import host_name
from dynprof.runtime.permissions import ROOT
from dynprof.runtime.safe_open import make_dir
from dynprof.runtime.safe_write import remove, take_name
from dynprof.runtime.stale_folders import remove_leftovers
from dynprof.runtime.standard_streams import say, warn_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_exported: dict[Path, tuple[int, int, int]] = {}
"""Files that this process wrote: pid (a fork has a copy of this), device and inode."""
_tidied: set[Path] = set()
"""Folders that :func:`remove_stale_files` has cleaned already."""


def output_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a file or folder that a script writes.

    Symbolic links are not followed, except those of the machine, which ``/tmp`` or ``/home`` may
    be. Such a link belongs to root, in a folder of root. A root process follows only links in
    ``/``, because it owns every link.

    Raises:
        CaptureError: The path has a symbolic link.
        OSError: A part of the path cannot be examined.
    """
    place = Path(path).expanduser().absolute()
    for part in (*reversed(place.parents), place):
        if part.is_symlink() and not _is_of_the_machine(part):
            real = os.path.realpath(place)
            raise CaptureError(
                f"{path} is not written: {part} is a symbolic link, which is not followed; "
                f"write to {real} instead"
            )
    return Path(os.path.normpath(place))


def write_file(path: str | os.PathLike[str], write: Callable[[Path], object]) -> Path:
    """Write a file to a path that a script chose; return the path used.

    A file of another process or an earlier run is kept. The new file then gets another name, and
    the script a warning. A file of this process and an empty file are replaced.

    Args:
        path: The file; its folder is created.
        write: Writes the file to the path that it gets, which has the same suffix.

    Raises:
        CaptureError: The path has a symbolic link, names a folder, is not a regular file, or is not
            writable.
    """
    if str(path).endswith(os.sep):
        raise CaptureError(f"{path} is not written: it is the name of a folder; name a file in it")
    try:
        return _write(output_path(path), write)
    except OSError as error:
        if error.filename is None:  # a full disk
            raise
        raise CaptureError(f"{path} is not written: {why_not_written(error)}") from error


def remove_stale_files(place: Path) -> None:
    """Remove and report leftovers of killed processes of this machine; once for each folder."""
    place = place.expanduser().absolute()
    if place in _tidied:
        return
    _tidied.add(place)
    for path in remove_leftovers((place,), host_name(), deep=False):
        say(f"removed {path}, which a killed process left unfinished")


def _write(place: Path, write: Callable[[Path], object]) -> Path:
    if place.exists() and not place.is_file():
        raise CaptureError(f"{place} exists and is not a regular file; name another one")
    make_dir(place.parent)
    hidden = place.with_name(f".{secrets.token_hex(8)}{''.join(place.suffixes)}")
    try:
        write(hidden)
        return _placed(hidden, place)
    except OSError as error:
        if error.filename == str(hidden):
            error.filename = str(place.parent)  # the script does not know the hidden file
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            remove(hidden)


def _placed(file: Path, wanted: Path) -> Path:
    """Give a file its wanted name, or the first name that no other process has taken."""
    facts = file.lstat()
    place = next(p for p in _names(wanted) if take_name(file, p, replace=_may_be_replaced(p)))
    _exported[place] = os.getpid(), facts.st_dev, facts.st_ino
    if place != wanted:
        warn_script(
            f"the export was written to {place}, because another process wrote {wanted}; use a "
            "different name for each process, for example with os.getpid()"
        )
    return place


def _may_be_replaced(place: Path) -> bool:
    try:
        facts = place.lstat()
    except FileNotFoundError:
        return False
    mine = os.getpid(), facts.st_dev, facts.st_ino
    return facts.st_size == 0 or _exported.get(place) == mine  # empty: made by tempfile


def _names(wanted: Path) -> Iterator[Path]:
    suffix = "".join(wanted.suffixes[-2:]) if wanted.suffix == ".gz" else wanted.suffix
    own = f"{wanted.name.removesuffix(suffix)}_{host_name()}_{os.getpid()}"
    yield wanted
    yield wanted.with_name(own + suffix)
    for number in itertools.count(2):  # an earlier process had the same id
        yield wanted.with_name(f"{own}_{number}{suffix}")


def _is_of_the_machine(link: Path) -> bool:
    if os.geteuid() == ROOT:
        return link.parent == Path("/")
    return {link.lstat().st_uid, link.parent.stat().st_uid} == {ROOT}
