"""The state of this process that the parts of a session share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dynprof.extras import missing
from dynprof.requests.capabilities import Lack
from dynprof.requests.edit_detection import read
from dynprof.runtime.clock import SystemClock
from dynprof.runtime.destination import destination
from dynprof.runtime.memory import free_mb, resident_mb
from dynprof.runtime.threads import ThreadProgress

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.backends import Backend
    from dynprof.requests.capabilities import Capabilities
    from dynprof.requests.edit_detection import Reading
    from dynprof.requests.request import Request
    from dynprof.runtime.clock import Clock
    from dynprof.runtime.layout import Layout
    from dynprof.runtime.rank import Rank
    from dynprof.runtime.safe_write import PrivateFolder


@dataclass
class ProcessContext:
    """This process: its rank, files, profilers, clock and memory; tests replace parts of it.

    Attributes:
        layout: The paths of its files.
        rank: Its rank, as far as it is known.
        backends: The profilers, in the order in which ``auto`` prefers them.
        clock: The clock.
        memory_mb: Returns its resident memory in MB (10^6 bytes).
        free_mb: Returns the MB (10^6 bytes) that it may still get.
        store: The store of all ranks that the script passed to ``init()``, if any.
        look_at: Returns whether a thread has run Python code since the last call, and its CPU time
            in seconds.
    """

    layout: Layout
    rank: Rank
    backends: tuple[Backend, ...]
    clock: Clock = field(default_factory=SystemClock)
    memory_mb: Callable[[], float] = resident_mb
    free_mb: Callable[[], float] = free_mb
    store: object = None
    look_at: Callable[[threading.Thread], tuple[bool, float]] = field(
        default_factory=lambda: ThreadProgress().look
    )
    _learning: contextlib.AbstractContextManager[bool] = field(
        default_factory=threading.RLock, repr=False
    )

    def learn_rank(self) -> bool:
        """Look up the rank again while it is unknown: process groups come up late.

        Returns:
            Whether this call found it.
        """
        with self._learning:
            found = self.rank.refreshed()
            if found == self.rank:
                return False
            self.rank, self.layout = found, replace(self.layout, rank=found.number)
            return True

    def read(self, file: Path | None = None) -> Reading:
        """Read the config, or another file."""
        path, follows = file or self.layout.config, self.layout.follow_symlinks
        return read(path, follow_symlinks=follows, is_watched=file is None)

    def make_scratch(self, request: Request) -> PrivateFolder:
        """Make the folder in which a profiler may write while it records for a request."""
        config = request.config
        place = destination(self.layout, config.prof_dir, config.storage.scratch_dir).staging_dir
        return self.layout.make_scratch(place)

    def backend(self, name: str) -> Backend:
        """Return the profiler of that name.

        Raises:
            KeyError: There is none.
        """
        return {backend.name: backend for backend in self.backends}[name]

    def capabilities(self) -> tuple[Capabilities, ...]:
        """Return what each profiler can do now, including the analysis of its captures."""
        found = tuple(backend.capabilities() for backend in self.backends)
        if not (text := missing("analysis", "the analysis")):
            return found
        lack = Lack("analyse", True, f"the capture is saved, but not analysed: {text}.")
        return tuple(
            one if one.backend == "npu" else replace(one, lacks=(*one.lacks, lack)) for one in found
        )
