"""What the callbacks of all frameworks have in common: a training that begins, steps and ends."""

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
    """Tells dynprof of one framework's training; may be pickled before it begins.

    Args:
        framework: Its name, for log, status and manifest.
        path: The directory of the config.
        options: The other arguments of :func:`dynprof.init`.

    Raises:
        TypeError: One of them is no argument of :func:`dynprof.init`.
    """

    def __init__(
        self, framework: str, path: str | os.PathLike[str], options: dict[str, Any]
    ) -> None:
        inspect.signature(dynamic_profile.init).bind(path, **options)
        self.framework, self._path, self._options = framework, path, options
        self._open: dict[str, int] = {}

    def watch(self, rank: int) -> None:
        """Watch from now on; where that cannot be, a sentence says so and the training goes on.

        Where this directory is watched already, as by a training before this one, nothing changes.

        Args:
            rank: Of this process, as the framework counts them, unless it was given.
        """
        options = {"rank": rank, **self._options}
        directory, from_outside = dynamic_profile.watched()
        is_same = directory is not None and Path(directory).resolve() == Path(self._path).resolve()
        if from_outside or not is_same:  # where another one is watched, that says so
            ErrorBoundary(StderrNotes()).attempt(
                f"watching for {self.framework}",
                lambda: dynamic_profile.init(self._path, **options),
            )

    def reached(self, step: int) -> None:
        """Take how many steps the framework has made; no phase lasts beyond."""
        if self._open:
            self._end_phases()
        if session := dynamic_profile.running():
            session.reached(self.framework, step)

    def ended(self) -> None:
        """Close what is open: the training has ended, and another may begin."""
        self._end_phases()
        if session := dynamic_profile.running():
            session.stop(f"{self.framework}'s training ended")

    def begin_phase(self, name: str) -> None:
        """Begin a phase, while somebody takes marks; costs a test where nobody does."""
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
