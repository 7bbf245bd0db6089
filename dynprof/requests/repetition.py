"""The request for baselines: one request that repeats until a cancel.

Each repetition is an edit with the bytes of the save that asked for it. So the ranks agree on it,
and the disk and the other limits are checked, as for any other save.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynprof.config import Source, parse_config
from dynprof.errors import ConfigError
from dynprof.requests.debounce import Reading, read
from dynprof.requests.request import Edit
from dynprof.runtime.layout import BASELINES_NAME
from dynprof.runtime.output import remove, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.config import Every, ProfilerConfig
    from dynprof.runtime.clock import Clock

LEAST_WAIT_S = 0.05
"""Seconds between two checks whether a baseline is due, at least: the watcher also reads a file."""


@dataclass(frozen=True)
class _Due:
    """The next baseline.

    Attributes:
        raw: The bytes of the config that asks for it.
        every: The interval.
        at: When it is due: monotonic seconds, or a step.
    """

    raw: bytes
    every: Every
    at: float

    def after(self, now: float) -> _Due:
        """Return the one after it; intervals that have passed are left out."""
        missed = max(0.0, now - self.at) // interval(self.every)
        return replace(self, at=self.at + (missed + 1) * interval(self.every))


def interval(every: Every) -> float:
    """Return the interval in seconds, or in steps."""
    return every.steps or every.seconds


class Repetition:
    """Says when the next baseline is due.

    The save is kept in a file next to the config: a later request changes the config, and baselines
    have to continue in the next run of the job.

    Args:
        root: The directory of the config.
        clock: The clock.
        step: Returns the number of the running step.

    Attributes:
        kept: Number of baselines of this rank on the disk; None before this process saved one.
    """

    def __init__(self, root: Path, clock: Clock, step: Callable[[], int]) -> None:
        self._path, self._clock, self._step = root / BASELINES_NAME, clock, step
        self._next: _Due | None = None
        self._lock = threading.RLock()  # ranks that agree cancel on another thread
        self.kept: int | None = None

    def __str__(self) -> str:
        """Return ``baseline every 30 min, next at 01:30; 3 kept``; empty if none is requested."""
        if (due := self._next) is None:
            return ""
        if due.every.steps:
            when = f"step {due.at:,.0f}"
        else:
            wall_s = self._clock.wall_s() + due.at - self._clock.now_s()
            form = "%H:%M" if interval(due.every) >= 60 else "%H:%M:%S"
            when = time.strftime(form, time.localtime(round(wall_s)))
        kept = "" if self.kept is None else f"; {self.kept} kept"
        return f"baseline {due.every}, next at {when}{kept}"

    def begin(self, raw: bytes, every: Every, share: float = 0.0) -> None:
        """Repeat a request from one interval after now.

        Args:
            raw: The bytes of its config.
            every: The interval.
            share: Part of the interval by which this rank is later: ranks that do not agree record
                one after the other.

        Raises:
            OSError: The order cannot be kept for the next run.
        """
        with self._lock:
            now = self._now(every)
            self._next = _Due(raw, every, now + (1 + share) * interval(every))
        kept = self._kept()
        if not (isinstance(kept, Source) and kept.raw == raw):
            write_atomic(self._path, raw)

    def resume(self, at_start: Reading, share: float = 0.0) -> None:
        """Continue the baselines that the config asks for, or that were requested before a restart.

        Args:
            at_start: The config as it was at the start.
            share: As in :meth:`begin`.

        Raises:
            OSError: As in :meth:`begin`.
        """
        config = _config_in(at_start)
        if config and config.cancel:
            self.end()
            return
        source = at_start if config and config.every else self._kept()
        asked = _config_in(source)
        if isinstance(source, Source) and asked and asked.every:
            self.begin(source.raw, asked.every, share)

    def _kept(self) -> Reading:
        return read(self._path)

    def end(self) -> Every | None:
        """Repeat no more; return the interval of the repetition, if there was one."""
        with self._lock:
            last, self._next = self._next, None
        with contextlib.suppress(FileNotFoundError):
            remove(self._path)
        return last.every if last else None

    def wait_s(self) -> float:
        """Return the seconds until the next baseline; infinity if it depends on steps."""
        due = self._next
        if due is None or due.every.steps:
            return float("inf")
        return max(LEAST_WAIT_S, due.at - self._clock.now_s())

    def due(self) -> Edit | None:
        """Return the edit of a baseline if its time has come, once."""
        with self._lock:
            due = self._next
            if due is None or (now := self._now(due.every)) < due.at:
                return None
            self._next = due.after(now)
        return Edit(due.raw, self._clock.wall_s(), is_own=True, is_repeated=True)

    def _now(self, every: Every) -> float:
        return float(self._step()) if every.steps else self._clock.now_s()


def _config_in(reading: Reading) -> ProfilerConfig | None:
    """Return the config of a reading; None if it cannot be read or used."""
    with contextlib.suppress(ConfigError):
        return parse_config(reading.raw).config if isinstance(reading, Source) else None
    return None
