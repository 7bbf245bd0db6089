"""The files below a folder in which a job may be running, and checks of values in them.

Other users may have written files that are there.
"""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.runtime.destination import MAX_PARTS
from dynprof.runtime.layout import ANALYSIS_DIR, INFO_DIR, LOG_DIR, STATUS_DIR, VENDORS_ANALYSIS_DIR
from dynprof.runtime.permissions import ROOT
from dynprof.runtime.safe_open import is_trusted_link, why_foreign, why_not_read

if TYPE_CHECKING:
    from collections.abc import Iterator

UNFINISHED = (".saving", ".recording")
"""Suffixes of the hidden folders in which processes put captures together."""
MAX_DEPTH = MAX_PARTS + 8
"""How many folders deep commands look: Python 3.11 raises RecursionError below some 1,000.

Captures are up to five folders below ``prof_dir``."""
_READ = re.compile(
    rf".*trace\.json(\.gz)?|{INFO_DIR}/.*\.json|{STATUS_DIR}/.*rank_.*\.(json|history)|"
    rf"{LOG_DIR}/dp_.*\.log(\.\d+)?",
    re.DOTALL,
)
"""Files that commands read wherever they find them, by the names of folder and file."""
_ENTERED = re.compile(rf"{INFO_DIR}|{LOG_DIR}|{STATUS_DIR}|step_\d.*")
"""Folders that commands search unless they are links."""
_WINDOW = re.compile(r"step_\d+-\d+_(\d{8}T\d{6}Z)")
"""Matches the names of ``window_dir_name``."""
_ANALYSIS = (ANALYSIS_DIR, VENDORS_ANALYSIS_DIR)
MAX_NUMBER = 1e15
"""Limit for numbers in a record: dates, byte counts and process ids are far below it."""
_ANY_JSON = "config"
"""A field that repeats the operator's config, which may have any ``metadata``."""


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, at any depth, that may be read (see :func:`may_be_read`).

    Unfinished captures are left out, and so are folders of users with no say in the folder above.
    Before Python 3.13, ``Path.rglob`` raises if a folder vanishes during the search.
    """
    for place, folders, names in _walk(folder):
        folders[:] = [name for name in folders if not _is_unfinished(name)]
        yield from (path for name in names if may_be_read(path := place / name))


def may_be_read(path: Path) -> bool:
    """Return whether a file is regular, no link, and of a user with a say in its folder.

    The file systems of fsspec have neither links nor users.
    """
    if not isinstance(path, Path):
        return path.is_file()
    try:
        return not why_not_read(path.lstat(), path.parent.stat())
    except OSError:  # it is gone
        return False


def skipped_below(folder: Path) -> list[str]:
    """Return the paths in a folder that commands would read but skip, each with the reason.

    These are links, files of users with no say in the folder that holds them, irregular files, and
    folders that are too deep.
    """
    found = list[str]()
    if not isinstance(folder, Path):  # one of fsspec's file systems
        return found
    for place, folders, names in os.walk(folder):
        kept, of_others = _split_foreign(Path(place), folders)
        # They contain no captures; a group member's report is no reason to warn.
        found += [f"{path} {why}" for path, why in of_others.items() if path.name not in _ANALYSIS]
        above = Path(place).name
        read = [name for name in (*names, *kept) if _READ.fullmatch(f"{above}/{name}")]
        links = [name for name in kept if _ENTERED.fullmatch(name)]
        links = [name for name in links if _is_left_out(Path(place, name))]
        for path in (Path(place, name) for name in (*read, *links)):
            with contextlib.suppress(OSError):  # it is gone
                why = why_not_read(path.lstat(), path.parent.stat())
                found += [f"{path} {why}"] if why else []
        folders[:] = [name for name in kept if not _is_unfinished(name)]
        if _is_deepest(Path(place), folder):
            found += [
                f"{Path(place, name)} is more than {MAX_DEPTH} folders deep" for name in folders
            ]
            folders.clear()
    return found


def _is_left_out(folder: Path) -> bool:
    """Return whether a folder is a link that commands do not follow."""
    may_lead = folder.name in (LOG_DIR, STATUS_DIR) and is_trusted_link(folder)
    return folder.is_symlink() and not may_lead


def folders_below(folder: Path) -> Iterator[Path]:
    """Yield a folder and the folders in it, at any depth."""
    yield from (place for place, _, _ in _walk(folder))


def _walk(folder: Any) -> Iterator[tuple[Path, list[str], list[str]]]:
    here = isinstance(folder, Path)  # else one of fsspec's file systems
    for found, folders, names in os.walk(folder) if here else folder.walk():
        place = Path(found) if here else found
        if here:
            folders[:] = _split_foreign(place, folders)[0]
        if _is_deepest(place, folder):
            folders.clear()
        yield place, folders, names


def _is_deepest(place: Path, top: Path) -> bool:
    return len(place.parts) - len(top.parts) >= MAX_DEPTH


def _split_foreign(place: Path, folders: list[str]) -> tuple[list[str], dict[Path, str]]:
    """Return which folders in one are searched, and the others with the reason.

    A folder of root may be shared by many users, each with folders of their own.
    """
    kept, others = [], dict[Path, str]()
    for name in folders:
        path = place / name
        try:
            holder, facts = place.stat(), path.lstat()
        except OSError:  # gone
            continue
        if holder.st_uid != ROOT and (why := why_foreign(facts, holder)):
            others[path] = why
        else:
            kept.append(name)
    return kept, others


def written_s(file: Path) -> float:
    """Return when a file was written, in seconds since the epoch; 0 if it is gone."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def age_key(file: Path) -> tuple[float, float]:
    """Return what a file of a newer window has more of: the time of its request, then of writing.

    Copies keep the name of a window's folder, and often not the times of its files.
    """
    at_s = written_s(file)
    for folder in file.parent, file.parent.parent:
        if named := _WINDOW.match(folder.name):
            with contextlib.suppress(ValueError):  # there is no such date
                requested = time.strptime(named[1], "%Y%m%dT%H%M%SZ")
                return calendar.timegm(requested), at_s
    return at_s, at_s


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") and name.endswith(UNFINISHED)


def check_values(record: Any) -> None:
    """Check the fields of a pydantic record or dataclass, at any depth.

    Raises:
        ValueError: A number is not finite or has more than 15 digits, or a text has a NUL.
    """
    waiting = [record]
    for value in waiting:  # the list grows during the loop
        if isinstance(value, str):
            if "\0" in value:
                raise ValueError("a text in it has a NUL character")
        elif isinstance(value, (int, float)):
            if not -MAX_NUMBER < value < MAX_NUMBER:  # NaN as well
                raise ValueError("a number in it is not finite, or has more than 15 digits")
        else:
            waiting += _inner(value)


def _inner(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        return list(value)
    fields = vars(value)
    if _ANY_JSON in fields:
        return [inner for name, inner in fields.items() if name != _ANY_JSON]
    return list(fields.values())
