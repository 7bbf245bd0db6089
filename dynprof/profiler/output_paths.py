"""Paths of a script's traces: where they lead, whose file may be replaced, what is left over."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError, why_not_written
from dynprof.runtime.folders import make_dir
from dynprof.runtime.layout import host_name
from dynprof.runtime.output import remove, take_name
from dynprof.runtime.stale_folders import remove_leftovers
from dynprof.runtime.warnings_to_script import say, warn_script
from dynprof.runtime.who_may_change import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_exported: dict[Path, tuple[int, int, int]] = {}
"""The files that this process wrote: its id, for a forked child has a copy; device and inode."""
_tidied: set[Path] = set()


def output_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a file or folder that a script wants written.

    No symbolic link in it is followed but those of the machine, as ``/tmp`` or ``/home`` may be:
    root's in a folder of root's. A process of root owns every link; it follows those in ``/``.

    Raises:
        CaptureError: A link is in the path.
        OSError: A part of the path cannot be looked at.
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
    """Write a file where a script wants it; return where it is.

    A file of another process stays, also one of an earlier run: the new one gets a name of its
    own, and the script a warning. What this process wrote is replaced, and so is an empty file.

    Args:
        path: Where to; its folder is made.
        write: Writes the file at the path that it gets, which ends as this one does.

    Raises:
        CaptureError: A link is in the path, it names a folder, something is there that is no
            regular file, or it cannot be written.
    """
    if str(path).endswith(os.sep):
        raise CaptureError(f"{path} is not written: it is the name of a folder; name a file in it")
    try:
        return _write(output_path(path), write)
    except OSError as error:
        if error.filename is None:  # a full disk
            raise
        raise CaptureError(f"{path} is not written: {why_not_written(error)}") from error


def tidy(place: Path) -> None:
    """Remove what killed processes of this machine left there, and say so; once for each place."""
    place = place.expanduser().absolute()
    if place in _tidied:
        return
    _tidied.add(place)
    for path in remove_leftovers((place,), host_name(), deep=False):
        say(f"removed {path}, which a killed process left unfinished")


def _write(place: Path, write: Callable[[Path], object]) -> Path:
    if place.exists() and not place.is_file():
        raise CaptureError(f"{place} exists and is no regular file; name another one")
    make_dir(place.parent)
    hidden = place.with_name(f".{secrets.token_hex(8)}{''.join(place.suffixes)}")
    try:
        write(hidden)
        return _placed(hidden, place)
    except OSError as error:
        if error.filename == str(hidden):
            error.filename = str(place.parent)  # the script knows no hidden file
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            remove(hidden)


def _placed(file: Path, wanted: Path) -> Path:
    """Give a file the name that is wanted, or the first that no other process has taken."""
    facts = file.lstat()
    place = next(p for p in _names(wanted) if take_name(file, p, replace=_may_be_replaced(p)))
    _exported[place] = os.getpid(), facts.st_dev, facts.st_ino
    if place != wanted:
        warn_script(
            f"the export was written to {place}, for another process wrote {wanted}; use a name "
            "for each process, as with os.getpid() in it"
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
