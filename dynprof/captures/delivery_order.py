"""Which files to send, and where to; also as text for the process that sends them."""

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
"""Pause between ranks that write to one place, and the most for all ranks; in seconds."""


@dataclass(frozen=True)
class Order:
    """Some files of one folder, and the target.

    Attributes:
        folder: The folder that has the files.
        files: Their paths in the folder. The last one arrives last, and confirms the others.
        target: The folder or URL to send them to.
        root: The directory of the config.
        prof_dirs: Other directories that the rules allow.
        follow_symlinks: Whether the rules allow links.
        retry_s: How long to retry, in seconds.
        least_free_mb: How many MB (10^6 bytes) must stay free at the target; None for no limit.
        keeps: Whether the files also stay here, and replace files of the same names at the target.
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
        """Return the order as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Order:
        """Return the order that :meth:`to_text` wrote."""
        fields = json.loads(text)
        lists = {name: tuple(fields[name]) for name in ("files", "prof_dirs")}
        return cls(**{**fields, **lists})


@dataclass(frozen=True)
class Delivery:
    """How the capture of a window gets to its destination.

    Attributes:
        layout: The files of this process.
        destination: Where the capture is put together, and where it goes.
        storage: The storage settings of the config.
        least_free_mb: How many MB (10^6 bytes) must stay free there; None for no limit.
        ranks: The ranks that record.
        rank: The rank of this process.
    """

    layout: Layout
    destination: Destination
    storage: StorageConfig
    least_free_mb: float | None
    ranks: RankSet
    rank: Rank

    def wait_s(self) -> float:
        """Return how many seconds this rank waits for the ranks before it."""
        place, ranks = self.ranks.position(self.rank.number, self.rank.world_size)
        spread_s = self.storage.spread_s
        if spread_s is None:
            shared = ranks > 1 and self.destination.is_shared()
            spread_s = min(MOST_SPREAD_S, GAP_S * ranks) if shared else 0.0
        return spread_s * place / max(1, ranks)

    def order(self, manifest_path: Path, manifest: Manifest) -> Order:
        """Return the order for a finished capture."""
        folder, names = manifest_path.parent.parent, files_of(manifest_path, manifest)
        return self._order(folder, names, least_free_mb=self.least_free_mb)

    def record_order(self, record: Path) -> Order:
        """Return the order for the record of a window of all ranks."""
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
    """Return how a capture gets to the place that a config names."""
    return Delivery(
        layout=layout,
        destination=destination(layout, config.prof_dir, config.storage.scratch_dir),
        storage=config.storage,
        least_free_mb=config.limits.min_free_disk_mb,
        ranks=config.selected_ranks,
        rank=rank,
    )


def files_of(manifest_path: Path, manifest: Manifest) -> tuple[str, ...]:
    """Return the files of a capture in order; the manifest, which names the others, is last.

    Files of other users are left out: they would arrive as files of the job's user.
    """
    folder = manifest_path.parent.parent
    trace = [folder / manifest.trace] if manifest.trace else []
    if trace and trace[0].is_dir() and not trace[0].is_symlink():
        trace = [path for path in sorted(files_below(trace[0])) if _is_own(path)]
    files = [*trace, *_other_files(manifest_path), manifest_path]
    return tuple(str(file.relative_to(folder)) for file in files)


def _other_files(manifest_path: Path) -> list[Path]:
    """Return the other files of a capture: its metadata, and those next to its manifest."""
    stem = manifest_path.name.removesuffix(".info.json")
    folder = manifest_path.parent.parent
    metadata = [folder / METADATA, folder / own_metadata(stem)]
    own_name = re.compile(re.escape(stem) + r"\.(?![0-9]+\.)")
    named = [path for path in sorted(manifest_path.parent.iterdir()) if own_name.match(path.name)]
    return [path for path in (*metadata, *named) if path != manifest_path and _is_own(path)]


def _is_own(path: Path) -> bool:
    """Return whether a path is a regular file, no link, of this process's user or a trusted one."""
    try:
        facts = path.lstat()
    except OSError:  # it is gone
        return False
    return stat.S_ISREG(facts.st_mode) and is_trusted(facts.st_uid)


def renamed(file: str, stem: str, other: str) -> str:
    """Return the path of a capture's file under another stem."""
    if file == own_metadata(stem):
        return own_metadata(other)
    head = f"{INFO_DIR}/{stem}."
    return f"{INFO_DIR}/{other}.{file.removeprefix(head)}" if file.startswith(head) else file
