"""The interface between a window and a profiler: what each backend must implement."""

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
    from dynprof.runtime.rank import Rank
    from dynprof.runtime.safe_write import PrivateFolder

    MakeFolder = Callable[[], PrivateFolder]
    """Creates a folder and returns it."""


@dataclass(frozen=True)
class Saved:
    """Facts about a trace that was written.

    Attributes:
        lost: What is missing from the trace or odd about it, each a sentence.
        cut: What makes the trace less than requested, each a sentence.
        lost_steps: The number of first steps that are incomplete.
        first_whole: The number of the step after these.
        facts: Members to add to the trace's JSON object.
        folder: Name of the trace's folder, next to the requested path; None for a single file.
    """

    lost: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    lost_steps: int = 0
    first_whole: int = 0
    facts: Mapping[str, JsonValue] = field(default_factory=dict)
    folder: str | None = None


@dataclass(frozen=True)
class Load:
    """The estimated size of a running recording.

    Attributes:
        events: The number of events that its trace will have.
        saving_mb: The memory needed to save them, in MB (10^6 bytes).
    """

    events: int = 0
    saving_mb: float = 0.0


@dataclass(frozen=True)
class Blocked:
    """A reason why a window cannot open now.

    Attributes:
        reason: The reason, as text for the log.
        effect: What happens to the request. ``wait``: it waits until the reason has passed.
            ``prefer wait``: it waits if it may open at any step. ``refused``: it is refused.
    """

    reason: str
    effect: Literal["wait", "prefer wait", "refused"] = "wait"


class Recording(Protocol):
    """One window's recording by a profiler, from its preparation to its file.

    ``start``, ``begin_step`` and ``close`` run inside ``step()`` on the training thread, in this
    order. ``save`` runs once afterwards, on another thread. ``discard`` replaces the remaining
    calls; ``abandon`` does so where the recording's thread cannot. Any of them may raise; the
    session then gives up the window.
    """

    @property
    def closing(self) -> str:
        """How ``close`` works, in a few words for the log and the manifest."""

    @property
    def without(self) -> tuple[str, ...]:
        """The plan's activities that it does not record."""

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Where it records more slowly or less than planned, as remarks for log and manifest."""

    @property
    def collectors(self) -> Collector:
        """The collectors of this window; the window starts and stops them, the exporter saves."""

    @property
    def results(self) -> Any:
        """The profiler's own object with the results; None where only the trace has them."""

    @property
    def saves_concurrently(self) -> bool:
        """Whether other threads can run Python while it is being saved."""

    @property
    def note_step(self) -> Callable[[int | None, int], None] | None:
        """A ``begin_step`` for a step that began some time ago, at a wall time in ns.

        None where a recording must learn of a step as it begins. Else nothing blocks its steps.
        """

    @property
    def bound_to_thread(self) -> bool:
        """Whether only the thread that prepared it may close or discard it."""

    def load(self, *, inside_step: bool) -> Load | None:
        """Return the size so far, on any thread; None where the size needs no limit.

        The first call comes as the recording begins: earlier allocations are not counted. Must be
        fast, because it is called at the end of steps. Inside a step it may leave out data of the
        running step that it cannot tell from the training's own.
        """

    def before_another_profiler(self, close_for_other: Callable[[], None]) -> None:
        """Have ``close_for_other`` called, on any thread, before another profiler begins."""

    def blocked_by(self) -> str | None:
        """Return why neither the step nor the recording can end now; None where they can."""

    def start(self) -> None:
        """End the warm-up; from here on all events are kept."""

    def begin_step(self, number: int | None) -> None:
        """End the previous step, if any, and begin the step with the job's ``number``.

        None where steps are not marked in the trace; recording begins all the same.
        """

    def close(self) -> None:
        """End the last step and stop recording, to be saved; must be fast."""

    def save(self, path: Path) -> Saved:
        """Write the trace to ``path`` as JSON, or to a folder next to it; may be slow.

        Raises:
            BackendError: The trace could not be written completely.
        """

    def discard(self) -> None:
        """Stop if running, and drop all data."""

    def abandon(self) -> None:
        """Discard as far as possible on another thread, because the recording's thread has ended.

        Also runs in a child that was just forked; there it must be fast and take no lock.
        """


def discard(recording: Recording) -> None:
    """Discard a recording and its collectors, even where one of the two fails."""
    try:
        recording.collectors.discard()
    finally:
        recording.discard()


class Backend(Protocol):
    """A profiler that makes recordings."""

    @property
    def name(self) -> str:
        """The name in the config."""

    @property
    def trace_suffix(self) -> str:
        """The suffix of its traces' names, without a compression suffix."""

    def capabilities(self) -> Capabilities:
        """Return what it can do in this process, or why it cannot; imports what it needs."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the software involved."""

    def blocked_by(self, plan: Plan, *, elsewhere: bool = False) -> Iterable[Blocked]:
        """Return the reasons why a window cannot open now, in order of precedence.

        Args:
            plan: What the window would record.
            elsewhere: The window would open on another thread or at another moment. Reasons that
                only that thread can see, such as graph captures, are left out.
        """

    def prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> Recording:
        """Turn the profiler on, for the warm-up; runs on the training thread.

        Args:
            plan: What to record.
            rank: This process's rank in its job.
            scratch: Creates a folder for files written while recording, on the capture's disk;
                ``save`` and ``discard`` remove it.

        Raises:
            BackendError: The backend cannot record now; the message has the reason.
        """
