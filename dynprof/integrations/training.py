"""The common part of the callbacks of all frameworks: a training that starts, steps and ends."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof import dynamic_profile
from dynprof.marks import open_ranges
from dynprof.marks.sinks import SINKS
from dynprof.phases import DOMAIN
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes

if TYPE_CHECKING:
    import os


class Training:
    """Reports one framework's training to dynprof; can be pickled before it starts.

    Args:
        framework: Its name, for log, status and manifest.
        path: The directory of the config.
        options: Other arguments of :func:`dynprof.init`.

    Raises:
        TypeError: An option is not an argument of :func:`dynprof.init`.
    """

    def __init__(
        self, framework: str, path: str | os.PathLike[str], options: dict[str, Any]
    ) -> None:
        inspect.signature(dynamic_profile.init).bind(path, **options)
        self.framework, self._path, self._options = framework, path, options
        self._open: dict[str, int] = {}

    def watch(self, rank: int) -> None:
        """Start to watch; on failure, print an error message and let the training continue.

        Nothing changes if this directory is watched already, for example by an earlier training.

        Args:
            rank: Rank of this process in the framework; ``rank`` in the options overrides it.
        """
        options = {"rank": rank, **self._options}
        directory, from_outside = dynamic_profile.watched()
        is_same = directory is not None and Path(directory).resolve() == Path(self._path).resolve()
        if from_outside or not is_same:  # init() reports another directory
            ErrorBoundary(StderrNotes()).attempt(
                f"watching for {self.framework}",
                lambda: dynamic_profile.init(self._path, **options),
            )

    def reached(self, step: int) -> None:
        """Report the number of steps that the framework has made, and end open phases."""
        if self._open:
            self._end_phases()
        if session := dynamic_profile.running():
            session.reached(self.framework, step)

    def ended(self) -> None:
        """Close open phases and the window: the training has ended, and another may start."""
        self._end_phases()
        if session := dynamic_profile.running():
            session.stop(f"{self.framework}'s training ended")

    def begin_phase(self, name: str) -> None:
        """Begin a phase if a window or subscriber takes marks; otherwise only test for that."""
        if SINKS.all:
            self.end_phase(name)
            self._open[name] = open_ranges.start(name, DOMAIN)

    def end_phase(self, name: str) -> None:
        """End a phase, if it was begun."""
        if self._open and name in self._open:
            open_ranges.end(self._open.pop(name))

    def _end_phases(self) -> None:
        for name in list(self._open):
            self.end_phase(name)
