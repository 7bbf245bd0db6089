"""Captures that no process sends any more: the job was killed, or it gave up."""

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
"""Each process puts the captures that it will send into a folder of its own."""
BELOW = 5
"""How many of the last names in a manifest's path come from dynprof, not from the operator."""
MOST_BYTES = 100_000
"""Largest manifest that a job reads while it trains; this size holds the GIL for some 20 ms.

A manifest of 16 MB, the largest possible, would take seconds and 2 GB of the job's memory.
"""


@dataclass(frozen=True)
class LeftBehind:
    """A capture that was not sent.

    Attributes:
        path: The path of its manifest.
        target: The target of its folder; empty if it is not known here.
    """

    path: Path
    target: str

    @property
    def folder(self) -> Path:
        """The folder of the capture."""
        return self.path.parent.parent

    @property
    def command(self) -> str:
        """The command line that sends it, from any directory; Python starts isolated."""
        target = self.target or "URL-OR-DIRECTORY"
        return shlex.join(
            ["python", "-I", "-m", "dynprof.captures.sender", str(self.folder), target]
        )


def left_behind(root: Path, places: Iterable[Path] = ()) -> list[LeftBehind]:
    """Return the captures below these directories that no process sends.

    Captures that are being saved are left out. So are young ones, which their process may be about
    to send.

    Args:
        root: The directory of a config; scratch directories that its jobs used are searched too.
        places: Other directories in which its job may have put captures together.
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
        return None  # a line break in the name could fake another line of output
    try:
        if time.time() - path.lstat().st_mtime < OLD_S or any(path.parent.glob(".*.saving")):
            return None
        if not all(map(is_unlocked, (folder.parent, folder, path.parent))):
            return None  # a job has queued it, or a process that a job started sends it
        manifest = load_manifest(path, MOST_BYTES)
        trace = manifest.trace
        if trace and (not _is_name(trace) or not os.path.lexists(folder / trace)):
            return None  # the trace is gone: the capture was sent
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
        # Several jobs may share a scratch directory, and a link may lead to another job's.
        root = Path(manifest.directory)
    if not (is_url(place) or (root / place).is_absolute()):
        return ""  # an older version of dynprof wrote it
    place = place.rstrip("/") if is_url(place) else os.path.normpath(absolute_place(root, place))
    target = f"{place}/{folder.name}"
    return "" if why_no_destination(target) or not target.isprintable() else target
