"""Captures that no process sends any more: the job was killed, or gave them up."""

from __future__ import annotations

import json
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError, ConfigError
from dynprof.runtime.destination import absolute_place, is_url, why_no_destination
from dynprof.runtime.layout import MANIFESTS
from dynprof.runtime.stale_folders import OLD_S, is_unlocked, matches, staging_dirs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dynprof.captures.manifest import Manifest

_MANIFEST = f"step_*/info/{MANIFESTS}"
_MANIFESTS = f"*_*.*rank*/{_MANIFEST}", f"*/*_*.*rank*/{_MANIFEST}"
"""Each process puts captures that are to be sent together in a folder of its own."""
BELOW = 5
"""So many names of a manifest's path at most were not chosen by who chose the directory."""
MOST_BYTES = 100_000
"""Of a manifest that a job reads as it trains, which no other thread does meanwhile: some 20 ms.

One of 16 MB, the most that any has, would hold it up for seconds, and take 2 GB of its memory.
"""


@dataclass(frozen=True)
class LeftBehind:
    """One capture.

    Attributes:
        path: Its manifest.
        target: Where its folder was to go; empty where that is not known here.
    """

    path: Path
    target: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.path.parent.parent

    @property
    def command(self) -> str:
        """What sends it, typed by somebody who may; isolated, wherever he stands."""
        target = self.target or "URL-OR-DIRECTORY"
        return shlex.join(
            ["python", "-I", "-m", "dynprof.captures.sender", str(self.folder), target]
        )


def left_behind(root: Path, places: Iterable[Path] = ()) -> list[LeftBehind]:
    """Return what nobody sends of what lies below these directories.

    Not what is being saved, nor what is so young that its process may be about to send it.

    Args:
        root: That of a config; scratch directories that its jobs have used are looked into as well.
        places: Others in which captures of its job may have been put together.
    """
    found = {
        path for place in (root, *places) for one in _MANIFESTS for path in matches(place, one)
    }
    found |= {path for place in staging_dirs(root) for path in matches(place, _MANIFEST)}
    return [one for path in sorted(found) if (one := _left(path, root))]


def _left(path: Path, root: Path) -> LeftBehind | None:
    from dynprof.captures.manifest import load_manifest

    folder = path.parent.parent
    if not "".join(path.parts[-BELOW:]).isprintable():
        return None  # a line break in a name would pass for another line of who names it
    try:
        if time.time() - path.lstat().st_mtime < OLD_S or any(path.parent.glob(".*.saving")):
            return None
        if not all(map(is_unlocked, (folder.parent, folder, path.parent))):
            return None  # a job has it wait, or a process that was started for it sends it
        manifest = load_manifest(path, MOST_BYTES)
        trace = manifest.trace
        if trace and (not _is_name(trace) or not os.path.lexists(folder / trace)):
            return None  # half of it has gone: it has been sent
    except (OSError, CaptureError):
        return None
    target = _target(manifest, folder, root)
    return None if target == str(folder) else LeftBehind(path, target)


def _is_name(text: str) -> bool:
    return text != ".." and Path(text).name == text


def _target(manifest: Manifest, folder: Path, root: Path) -> str:
    from dynprof.config import parse_config

    try:
        config = parse_config(json.dumps(manifest.request.config).encode()).config
    except ConfigError:  # another version of dynprof wrote it
        return ""
    place = config.prof_dir
    if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
        # A scratch directory may be that of several jobs, and a link lead to another's.
        root = Path(manifest.directory)
    if not (is_url(place) or (root / place).is_absolute()):
        return ""  # an older version of dynprof wrote it
    place = place.rstrip("/") if is_url(place) else os.path.normpath(absolute_place(root, place))
    target = f"{place}/{folder.name}"
    return "" if why_no_destination(target) or not target.isprintable() else target
