"""Baselines: the captures of a request that repeats. Only these are ever removed."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from dynprof.captures.manifest import Manifest, load_manifest
from dynprof.errors import CaptureError
from dynprof.runtime.job_files import folders_below, may_be_read
from dynprof.runtime.layout import INFO_DIR, MANIFESTS, ROLE, rank_name
from dynprof.runtime.safe_write import remove_folder

DEFAULT_KEEP = 20
"""Number of baselines that stay where the config names none; the default of its model."""
_FOLDER = re.compile(rf"step_\d+-\d+_\d{{8}}T\d{{6}}Z(_{ROLE})?")
"""Names of the folders of windows. A baseline in a folder of another name has been set aside."""
_MANIFEST = re.compile(rf"(?:({ROLE})_)?rank_(\d{{1,9}})\.info\.json")
"""Names of manifests, with role and rank."""
_DETAIL = (
    "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules",
    "memory_snapshot",
)  # fmt: skip
"""Settings that make the steps of a window longer."""


@dataclass(frozen=True)
class Baseline:
    """A baseline of one rank.

    Attributes:
        folder: The folder of its window.
        manifest: Its manifest.
    """

    folder: Path
    manifest: Manifest

    @property
    def opened_at(self) -> datetime:
        """When its window opened, in local time."""
        return datetime.fromisoformat(self.manifest.opened_at).astimezone()

    @property
    def trace(self) -> Path | None:
        """The path of its trace; None if it has none."""
        name = self.manifest.trace
        return self.folder / Path(name).name if name else None  # no path out of the folder


def baselines_in(place: Path, role: str, rank: int) -> list[Baseline]:
    """Return the baselines of a rank in a directory of captures, the oldest first.

    Args:
        place: The directory; baselines in the folders below it do not count.
        role: The role of the rank; empty in a job without roles.
        rank: The rank.
    """
    found = []
    for folder in windows_in(place):
        path = folder / INFO_DIR / f"{rank_name(role, rank)}.info.json"
        with contextlib.suppress(CaptureError):
            if may_be_read(path) and opened_at(manifest := load_manifest(path)):
                found += [Baseline(folder, manifest)] if manifest.is_baseline else []
    return sorted(found, key=lambda one: one.opened_at)


def opened_at(manifest: Manifest) -> datetime | None:
    """Return when a window opened, in local time; None if the manifest has no valid time."""
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromisoformat(manifest.opened_at).astimezone()
    return None


def shape(manifest: Manifest) -> tuple[object, ...]:
    """Return what two captures must have in common, so that their times can be compared."""
    from dynprof.config import ProfilerConfig  # only analysis needs it

    detail: object = None
    with contextlib.suppress(ValidationError):  # of another version of dynprof
        config = ProfilerConfig.model_validate(manifest.request.config)
        inner = config.experimental_config.model_dump(exclude={"export_type"})
        detail = [getattr(config, name) for name in _DETAIL], inner
    return (
        manifest.backend,
        manifest.activities,
        manifest.role,
        manifest.rank,
        manifest.world_size,
        detail,
    )


def kept_at_most(manifest: Manifest) -> int:
    """Return the number of baselines that stay, by the request of one."""
    keep = manifest.request.config.get("keep")
    return keep if isinstance(keep, int) else DEFAULT_KEEP


def baseline_places(path: Path) -> list[Path]:
    """Return the directories below a path that have folders of windows.

    Args:
        path: A directory of captures, or one with such directories in it.
    """
    found = {folder.parent for folder in folders_below(path) if _FOLDER.fullmatch(folder.name)}
    return sorted(found)


def ranks_with_baselines(place: Path) -> list[tuple[str, int]]:
    """Return role and number of the ranks that have baselines in a directory of captures.

    Only the first manifest of each window is read: its thousands of ranks have one request.
    """
    found = set()
    for folder in windows_in(place):
        paths = sorted(folder.glob(f"{INFO_DIR}/{MANIFESTS}"))
        with contextlib.suppress(CaptureError):
            manifest = load_manifest(paths[0]) if paths and may_be_read(paths[0]) else None
            if manifest and manifest.is_baseline and opened_at(manifest):
                names = filter(None, (_MANIFEST.fullmatch(path.name) for path in paths))
                found |= {(name[1] or "", int(name[2])) for name in names}
    return sorted(found)


def windows_in(place: Path) -> list[Path]:
    """Return the folders of windows in a directory; a link is none."""
    try:
        with os.scandir(place) as entries:
            return [
                place / entry.name
                for entry in entries
                if _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


def remove_old_baselines(place: Path, newest: Manifest) -> tuple[int, list[Baseline]]:
    """Remove the baselines of a rank that are older than those that its config keeps.

    Baselines without a trace, such as on a full disk, are counted separately: they must not remove
    those with one. The ranks of a window share its folder; the first of them there removes it. A
    folder stays that has another capture too, or that belongs to another user or another config.

    Args:
        place: The directory of captures.
        newest: The manifest of the newest baseline.

    Returns:
        The number of baselines of this rank with a trace that are left, and the removed baselines.

    Raises:
        OSError: A folder cannot be removed.
    """
    found, keep = baselines_in(place, newest.role, newest.rank), kept_at_most(newest)
    whole = [one for one in found if one.trace]
    failed = [one for one in found if not one.trace]
    removed = []
    for one in (*whole[:-keep], *failed[:-keep]):
        if one.manifest.directory == newest.directory and _is_removable(one):
            remove_folder(one.folder)
            removed.append(one)
    return len(whole) - sum(bool(one.trace) for one in removed), removed


def _is_removable(one: Baseline) -> bool:
    """Return whether this rank may remove a folder: it is the first, and all are baselines.

    The first is the first with a trace: a rank whose save failed does not remove others' traces.
    """
    facts = one.folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        return False
    paths = sorted(one.folder.glob(f"{INFO_DIR}/{MANIFESTS}"))
    own = f"{rank_name(one.manifest.role, one.manifest.rank)}.info.json"
    try:
        manifests = [load_manifest(path) for path in paths]
    except CaptureError:
        return False
    pairs = zip(paths, manifests, strict=True)
    first = next((path for path, manifest in pairs if manifest.trace), paths[0])
    return first.name == own and all(manifest.is_baseline for manifest in manifests)
