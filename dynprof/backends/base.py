"""The seam between the window and a profiler: what a backend must do, and nothing more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pydantic import JsonValue

    from dynprof.backends.collectors import Collector
    from dynprof.requests.capabilities import Capabilities
    from dynprof.requests.plan import Plan
    from dynprof.runtime.output import PrivateFolder
    from dynprof.runtime.rank import Rank

    MakeFolder = Callable[[], PrivateFolder]
    """Makes a folder and returns it."""


@dataclass(frozen=True)
class Saved:
    """What is to be said of a trace that was written.

    Attributes:
        lost: What is missing from it or odd about it, each a sentence.
        cut: What makes it less than what was asked for, each a sentence.
        lost_steps: How many of the first steps are not there whole.
        first_whole: The number of the one after these.
        facts: Members to add to its JSON object.
        folder: Name of the folder that the trace is, beside the path asked for; None where it is
            that one file.
    """

    lost: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    lost_steps: int = 0
    first_whole: int = 0
    facts: Mapping[str, JsonValue] = field(default_factory=dict)
    folder: str | None = None


@dataclass(frozen=True)
class Load:
    """What a recording holds so far, by an estimate made while it records.

    Attributes:
        events: How many events its trace will have.
        saving_mb: How much memory it takes to save them, in MB (10^6 bytes).
    """

    events: int = 0
    saving_mb: float = 0.0


@dataclass(frozen=True)
class Blocked:
    """What keeps a window from opening now.

    Attributes:
        by: What that is, in words for the log.
        then: What becomes of the request: it has to ``wait`` until that has passed; it would
            ``rather wait``, so it does where any step will do; or it is ``refused``.
    """

    by: str
    then: Literal["wait", "rather wait", "refused"] = "wait"


class Recording(Protocol):
    """What a profiler records of one window, from its preparation to its file.

    ``start``, ``begin_step`` and ``close`` run inside ``step()`` on the training thread, in this
    order; ``save`` runs once afterwards, on another thread; ``discard`` instead of what is left, or
    ``abandon`` where its thread cannot. Any of them may raise; the session then gives the window
    up.
    """

    @property
    def closing(self) -> str:
        """How ``close`` goes about it, in a few words for the log and the manifest."""

    @property
    def without(self) -> tuple[str, ...]:
        """Activities of the plan that it does not watch."""

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Slower or lesser ways in which it records, as remarks for log and manifest."""

    @property
    def collectors(self) -> Collector:
        """What records beside it; the window starts and stops it, the exporter saves it."""

    @property
    def results(self) -> Any:
        """The profiler's own object that knows the results; None where only the trace does."""

    @property
    def saves_beside(self) -> bool:
        """Whether other threads run Python while it is being saved."""

    @property
    def note_step(self) -> Callable[[int | None, int], None] | None:
        """Do as ``begin_step`` for a step that began some time ago, at a wall time in ns.

        None where a recording needs to be told as it begins. Else nothing blocks its steps.
        """

    @property
    def bound_to_thread(self) -> bool:
        """Whether only the thread that prepared it may close or discard it."""

    def load(self, *, inside_step: bool) -> Load | None:
        """Return what it holds so far, on any thread; None where nothing of it has to be bounded.

        Asked for the first time as the recording begins: what was allocated before is not its own.
        Must be fast, as it is asked at the ends of steps. Inside of one it may leave out of the
        running step what cannot be told from the training's own.
        """

    def before_another_profiler(self, give_way: Callable[[], None]) -> None:
        """Have ``give_way`` called, on whichever thread, before another profiler would harm."""

    def blocked_by(self) -> str | None:
        """Say why its step cannot end, nor itself, at this very moment, or None where they can."""

    def start(self) -> None:
        """End the warm-up: from here on everything is kept."""

    def begin_step(self, number: int | None) -> None:
        """End the step before, if any, and begin the step that the job calls ``number``.

        None where steps are not marked in the trace: something begins all the same.
        """

    def close(self) -> None:
        """End the last step and stop recording, to be saved; must be fast."""

    def save(self, path: Path) -> Saved:
        """Write the trace to ``path`` as JSON, or to a folder beside it; may be slow.

        Raises:
            BackendError: It could not be written whole.
        """

    def discard(self) -> None:
        """Stop if running, and forget everything."""

    def abandon(self) -> None:
        """Do what can be done of that without its thread, whose end has come, on any other.

        Also in a child that was just forked; there it must be fast and take no lock.
        """


def discard(recording: Recording) -> None:
    """Discard a recording, and what records beside it whether or not that works."""
    try:
        recording.collectors.discard()
    finally:
        recording.discard()


class Backend(Protocol):
    """A profiler that can be asked for recordings."""

    @property
    def name(self) -> str:
        """The name in the config."""

    @property
    def trace_suffix(self) -> str:
        """What the names of its traces end with, without a compression."""

    def capabilities(self) -> Capabilities:
        """Say what it can do in this process, or why it cannot; imports what it needs."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of what takes part."""

    def blocked_by(self, plan: Plan, *, elsewhere: bool = False) -> Iterable[Blocked]:
        """Return what keeps a window from opening now, what comes first first.

        Args:
            plan: What the window would record.
            elsewhere: It would open on another thread, or at another moment: what only that one
                can see, graph captures and the like, is left out.
        """

    def prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> Recording:
        """Turn the profiler on, for the warm-up; runs on the training thread.

        Args:
            plan: What to record.
            rank: Where this process stands in its job.
            scratch: Makes a folder for what must be written while recording, on the disk of the
                capture; ``save`` and ``discard`` remove it.

        Raises:
            BackendError: It cannot record now, with the reason.
        """
