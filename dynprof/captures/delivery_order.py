"""What is to be sent where, and in what words the process that sends is told."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dynprof.runtime.destination import destination
from dynprof.runtime.job_files import files_below
from dynprof.runtime.layout import INFO_DIR, METADATA, own_metadata
from dynprof.runtime.who_may_change import is_trusted

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from dynprof.config import ProfilerConfig, RankSet, StorageConfig
    from dynprof.runtime.destination import Destination
    from dynprof.runtime.layout import Layout
    from dynprof.runtime.rank import Rank

GAP_S, MOST_SPREAD_S = 0.02, 60.0
"""Between the ranks that begin to write to one place, and in all."""


@dataclass(frozen=True)
class Order:
    """Some files of one folder.

    Attributes:
        folder: Where they lie.
        files: Their paths in it; the last arrives last, and says that the others have.
        target: The folder, or its URL, that they go to.
        root: The directory of the config.
        prof_dirs: Others that the rules allow.
        follow_symlinks: Whether the rules allow links.
        retry_s: For how long to try, in seconds.
        least_free_mb: How many MB (10^6 bytes) must stay free there; None for no limit.
        keeps: Whether they stay here too, and take the place there of what has their names.
    """

    folder: str
    files: tuple[str, ...]
    target: str
    root: str
    prof_dirs: tuple[str, ...]
    follow_symlinks: bool
    retry_s: float
    least_free_mb: float | None = None
    keeps: bool = False

    def to_text(self) -> str:
        """Return the words."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Order:
        """Return what the words say."""
        told = json.loads(text)
        lists = {name: tuple(told[name]) for name in ("files", "prof_dirs")}
        return cls(**{**told, **lists})


@dataclass(frozen=True)
class Delivery:
    """How a window's capture gets to its place.

    Attributes:
        layout: The files of this process.
        destination: Where it is put together, and where it goes.
        storage: What the config says of the way.
        least_free_mb: How many MB (10^6 bytes) must stay free there; None for no limit.
        asked: The ranks that record.
        rank: This one.
    """

    layout: Layout
    destination: Destination
    storage: StorageConfig
    least_free_mb: float | None
    asked: RankSet
    rank: Rank

    def wait_s(self) -> float:
        """Return how long this rank leaves the place to those before it, in seconds."""
        place, ranks = self.asked.position(self.rank.number, self.rank.world_size)
        spread_s = self.storage.spread_s
        if spread_s is None:
            shared = ranks > 1 and self.destination.is_shared()
            spread_s = min(MOST_SPREAD_S, GAP_S * ranks) if shared else 0.0
        return spread_s * place / max(1, ranks)

    def order(self, manifest_path: Path, manifest: Manifest) -> Order:
        """Return what to send of a capture that has been put together."""
        folder, names = manifest_path.parent.parent, files_of(manifest_path, manifest)
        return self._order(folder, names, least_free_mb=self.least_free_mb)

    def record_order(self, record: Path) -> Order:
        """Return what to send of the record of a window of all ranks."""
        folder = record.parent.parent
        return self._order(folder, (str(record.relative_to(folder)),), keeps=True)

    def _order(
        self,
        folder: Path,
        files: tuple[str, ...],
        *,
        least_free_mb: float | None = None,
        keeps: bool = False,
    ) -> Order:
        return Order(
            folder=str(folder),
            files=files,
            target=str(self.destination.folder(folder.name)),
            root=str(self.layout.root),
            prof_dirs=tuple(map(str, self.layout.prof_dirs)),
            follow_symlinks=self.layout.follow_symlinks,
            retry_s=self.storage.retry_s,
            least_free_mb=least_free_mb,
            keeps=keeps,
        )


def delivery_of(config: ProfilerConfig, layout: Layout, rank: Rank) -> Delivery:
    """Return how a capture gets to where a config says."""
    return Delivery(
        layout=layout,
        destination=destination(layout, config.prof_dir, config.storage.scratch_dir),
        storage=config.storage,
        least_free_mb=config.limits.min_free_disk_mb,
        asked=config.selected_ranks,
        rank=rank,
    )


def files_of(manifest_path: Path, manifest: Manifest) -> tuple[str, ...]:
    """Return the files of a capture in their order: its manifest, which names them, comes last.

    Files that another user put there are not sent: they would arrive as files of the job's user.
    """
    folder = manifest_path.parent.parent
    trace = [folder / manifest.trace] if manifest.trace else []
    if trace and trace[0].is_dir() and not trace[0].is_symlink():
        trace = [path for path in sorted(files_below(trace[0])) if _is_own(path)]
    files = [*trace, *_beside(manifest_path), manifest_path]
    return tuple(str(file.relative_to(folder)) for file in files)


def _beside(manifest_path: Path) -> list[Path]:
    """Return the other files of a capture: its metadata, and those next to its manifest."""
    stem = manifest_path.name.removesuffix(".info.json")
    folder = manifest_path.parent.parent
    metadata = [folder / METADATA, folder / own_metadata(stem)]
    mine = re.compile(re.escape(stem) + r"\.(?![0-9]+\.)")
    named = [path for path in sorted(manifest_path.parent.iterdir()) if mine.match(path.name)]
    return [path for path in (*metadata, *named) if path != manifest_path and _is_own(path)]


def _is_own(path: Path) -> bool:
    """Return whether a path is a regular file, no link, of this process's user or a trusted one."""
    try:
        facts = path.lstat()
    except OSError:  # it is gone
        return False
    return stat.S_ISREG(facts.st_mode) and is_trusted(facts.st_uid)


def renamed(file: str, stem: str, other: str) -> str:
    """Return the path of a capture's file where another capture has its name."""
    if file == own_metadata(stem):
        return own_metadata(other)
    head = f"{INFO_DIR}/{stem}."
    return f"{INFO_DIR}/{other}.{file.removeprefix(head)}" if file.startswith(head) else file
