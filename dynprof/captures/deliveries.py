"""Deliveries: which files of a capture go where, and the thread that has them sent one by one.

An ``Order`` is also the text that the sending process reads. A job that was killed, or that gave
up, leaves captures behind that no process sends any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shlex
import stat
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError, ConfigError, RemovedError
from dynprof.runtime.destination import (
    OUTGOING,
    absolute_place,
    destination,
    is_url,
    why_no_destination,
)
from dynprof.runtime.job_files import files_below
from dynprof.runtime.layout import INFO_DIR, MANIFESTS, METADATA, own_metadata
from dynprof.runtime.permissions import is_trusted
from dynprof.runtime.side_process import SideProcess
from dynprof.runtime.stale_folders import OLD_S, folder_lock, is_unlocked, matches, staging_dirs
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dynprof.captures.exporter import Attempt
    from dynprof.captures.manifest import Manifest
    from dynprof.config import ProfilerConfig, RankSet, StorageConfig
    from dynprof.runtime.destination import Destination
    from dynprof.runtime.layout import Layout
    from dynprof.runtime.rank import Rank

DELIVERED = "delivered "
"""How the last line of a successful delivery begins."""
_GONE = "nothing can be sent: "
"""Prefix of a final error: the interpreter or this package is gone, so a retry is useless."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""The first and the longest pause between two tries, in seconds."""
MIN_TRY_S, MIN_BYTES_A_SECOND = 60.0, 1e6
"""A try counts as hung after ``max(MIN_TRY_S, retry_s)`` seconds plus the size at this rate."""
GAP_S, MAX_SPREAD_S = 0.02, 60.0
"""Pause between ranks that write to one place, and the most for all ranks; in seconds."""
_MANIFEST = f"step_*/info/{MANIFESTS}"
_MANIFESTS = f"*_*.*rank*/{_MANIFEST}", f"*/*_*.*rank*/{_MANIFEST}"
"""Each process puts the captures that it will send into a folder of its own."""
BELOW = 5
"""How many of the last names in a manifest's path come from dynprof, not from the operator."""
MAX_MANIFEST_BYTES = 100_000
"""Largest manifest that a job reads while it trains; this size holds the GIL for some 20 ms.

A manifest of 16 MB, the largest possible, would take seconds and 2 GB of the job's memory.
"""


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
            spread_s = min(MAX_SPREAD_S, GAP_S * ranks) if shared else 0.0
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


@dataclass(frozen=True)
class DeliveryTask:
    """An order, and the callbacks for its outcome; they run on the delivery thread.

    Attributes:
        order: Which files to send, and where to.
        wait_s: Returns how many seconds to wait first, while other ranks write to the target.
        on_trouble: Called with the reason of a failed try, once for repeats of the same reason.
        on_end: Called with the path or URL of the last file and an empty text; on failure with an
            empty path and the reason.
    """

    order: Order
    wait_s: Callable[[], float] = lambda: 0.0
    on_trouble: Callable[[str], None] = lambda _: None
    on_end: Callable[[str, str], None] = lambda *_: None


class Deliveries:
    """The deliveries of a session; the thread starts with the first one.

    Args:
        attempt: Runs an action, logs an exception, and returns it.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._tasks: queue.SimpleQueue[DeliveryTask] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._left: list[Order] = []  # the first is being sent
        self._staging_dirs: set[Path] = set()
        self._held: dict[Path, contextlib.ExitStack] = {}
        self._idle, self._ending = threading.Event(), threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a delivery is running or waiting."""
        return not self._idle.is_set()

    def submit(self, task: DeliveryTask) -> None:
        """Queue a delivery."""
        with self._lock:
            self._left.append(task.order)
            self._staging_dirs.add(_staging_dir(task.order))
            self._idle.clear()
            self._lock_pending()
            self._tasks.put(task)
            if self._thread is None:
                thread = own_thread(self._run, "dynprof-delivery")
                thread.start()
                self._thread = thread

    def _lock_pending(self) -> None:
        """Lock the waiting captures, so that no other process takes them for leftovers.

        One lock covers all captures of one staging folder. With one lock per capture, a store that
        is down would cost the job as many descriptors as captures wait for it.
        """
        waiting = {_staging_dir(order) for order in self._left if not order.keeps}
        for staging_dir in waiting - self._held.keys():
            with contextlib.suppress(OSError), contextlib.ExitStack() as held:
                if held.enter_context(folder_lock(staging_dir)):
                    self._held[staging_dir] = held.pop_all()
        for staging_dir in self._held.keys() - waiting:
            with contextlib.suppress(OSError):
                self._held.pop(staging_dir).close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all are delivered, and skip the waits for other ranks; False on timeout."""
        self._ending.set()
        return self._idle.wait(timeout_s)

    def left(self) -> list[str]:
        """Return a message for each capture that has not arrived as the process ends."""
        with self._lock:
            orders = list(self._left)
        texts = [f"the capture in {o.folder} has not arrived in {o.target}: " for o in orders]
        first = "it may still arrive, otherwise it stays there"
        return [text + ("it stays there" if n else first) for n, text in enumerate(texts)]

    def end(self) -> None:
        """Remove the staging folders that are empty."""
        for staging_dir in self._staging_dirs:
            remove_if_empty(staging_dir)

    def _run(self) -> None:
        while True:
            self._attempt("sending a capture", self._send_next)
            with self._lock:
                self._left.pop(0)
                self._lock_pending()
                if not self._left:
                    self._idle.set()

    def _send_next(self) -> None:
        task = self._tasks.get()
        self._ending.wait(task.wait_s())
        until_s, pause_s = time.monotonic() + task.order.retry_s, FIRST_PAUSE_S
        said, told = send_once(task.order), ""
        while not _is_final(said) and time.monotonic() < until_s:
            if said != told:
                task.on_trouble(said)
                told = said
            time.sleep(min(pause_s, max(0.0, until_s - time.monotonic())))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            said = send_once(task.order)
        if said.startswith(DELIVERED):
            task.on_end(said.removeprefix(DELIVERED), "")
        else:
            task.on_end("", said)


def _is_final(said: str) -> bool:
    """Return whether to stop trying: it was delivered, or dynprof cannot be loaded."""
    return said.startswith((DELIVERED, _GONE, "ImportError: ", "ModuleNotFoundError: "))


def remove_if_empty(staging_dir: Path) -> None:
    """Remove a staging folder of a process if it is empty."""
    with contextlib.suppress(OSError):
        staging_dir.rmdir()
        if staging_dir.parent.name == OUTGOING:
            staging_dir.parent.rmdir()


def _staging_dir(order: Order) -> Path:
    """Return the folder where this process puts together all captures for the same target."""
    return Path(order.folder).parent


def send_once(order: Order) -> str:
    """Send an order in a separate process; return the last line that the process prints."""
    try:
        sending = SideProcess.begin(
            "dynprof.captures.sender", stdin_text=order.to_text(), place=order.target
        )
        return sending.last_line(wait=True, most_s=try_timeout_s(order)) or ""
    except RemovedError as error:
        return f"{_GONE}{error}"
    except OSError as error:
        return f"no process can be started: {error}"


def try_timeout_s(order: Order) -> float:
    """Return how long a try may take; a network disk or a store that hangs never ends."""
    sizes = 0
    for file in order.files:
        with contextlib.suppress(OSError):
            sizes += Path(order.folder, file).stat().st_size
    return max(MIN_TRY_S, order.retry_s) + sizes / MIN_BYTES_A_SECOND


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
        manifest = load_manifest(path, MAX_MANIFEST_BYTES)
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
