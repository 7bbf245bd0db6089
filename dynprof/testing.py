"""Fakes for tests: a clock that the test moves, and a profiler that only notes its calls.

dynprof's own unit tests use them, and so can authors of backends and of code around dynprof.
Nothing in the package imports this module.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.backends.base import Blocked, Saved
from dynprof.backends.collectors import Collector, Collectors
from dynprof.captures.exporter import Export, Exporter
from dynprof.requests.capabilities import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.backends.base import Load, MakeFolder
    from dynprof.captures.exporter import Attempt
    from dynprof.requests.plan import Plan
    from dynprof.runtime.rank import Rank


@dataclass
class FakeClock:
    """A clock for tests.

    Attributes:
        now: Monotonic seconds.
        wall: Seconds since the epoch.
    """

    now: float = 100.0
    wall: float = 1_700_000_000.0

    def now_s(self) -> float:
        """Return the monotonic seconds that the test set."""
        return self.now

    def wall_s(self) -> float:
        """Return the seconds since the epoch that the test set."""
        return self.wall

    def advance(self, seconds: float) -> None:
        """Advance both times."""
        self.now += seconds
        self.wall += seconds


@dataclass
class FakeBackend:
    """A backend that notes its calls.

    Attributes:
        name: Its name in the config.
        activities: Its activities.
        fail_at: Names of calls that raise: ``prepare``, ``start``, ``begin_step``, ``close``,
            ``save``, ``discard``.
        in_the_way: Why no window can open, and no step of a window end, right now.
        blocked: Further results of ``blocked_by()``.
        only_notes_steps: Whether its recordings accept steps later.
        loads: Returns the result of ``load()`` of its recordings.
        cut: The parts that its recordings lack when they are saved, in sentences.
        inline: Why its windows close inline, for its capabilities.
        is_testing: Whether its capabilities report a running self-test.
        fallbacks: The lesser ways in which its recordings record.
        recordings: Every recording made, in order.
    """

    name: str = "fake"
    activities: tuple[str, ...] = ("CPU",)
    fail_at: set[str] = field(default_factory=set)
    in_the_way: str | None = None
    blocked: tuple[Blocked, ...] = ()
    only_notes_steps: bool = False
    loads: Callable[[], Load] | None = None
    cut: tuple[str, ...] = ()
    inline: str = ""
    is_testing: bool = False
    fallbacks: tuple[str, ...] = ()
    recordings: list[FakeRecording] = field(default_factory=list)
    trace_suffix: str = "fake.trace.json"

    def capabilities(self) -> Capabilities:
        """Return the capabilities that the test set."""
        return Capabilities(
            self.name,
            self.activities,
            inline=self.inline,
            inline_on_device=self.inline,
            is_testing=self.is_testing,
        )

    def versions(self) -> dict[str, str]:
        """Return a version."""
        return {self.name: "1"}

    def blocked_by(self, plan: Plan, *, elsewhere: bool = False) -> tuple[Blocked, ...]:  # noqa: ARG002
        """Return what the test set."""
        here = (Blocked(self.in_the_way),) if self.in_the_way and not elsewhere else ()
        return here + self.blocked

    def prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> FakeRecording:  # noqa: ARG002
        """Make a recording."""
        self.maybe_fail("prepare")
        self.recordings.append(FakeRecording(self))
        return self.recordings[-1]

    def maybe_fail(self, call: str) -> None:
        """Raise if the test wants it.

        Raises:
            RuntimeError: ``call`` is in ``fail_at``.
        """
        if call in self.fail_at:
            raise RuntimeError(f"{call} was told to fail")

    @property
    def running(self) -> int:
        """How many recordings are running."""
        return sum(recording.running for recording in self.recordings)


@dataclass
class FakeRecording:
    """A recording that notes its calls.

    Attributes:
        backend: The backend that made it.
        calls: The calls, in order.
        steps: The step numbers begun.
        running: Whether it was neither closed, discarded nor abandoned.
        closing: How it closes.
        without: Activities that it does not record.
        bound_to_thread: As for a real one.
        results: As for a real one.
        saves_concurrently: As for a real one.
        collectors: As for a real one.
        close_for_other: The window's callback for the start of another profiler.
    """

    backend: FakeBackend
    calls: list[str] = field(default_factory=lambda: ["prepare"])
    steps: list[int] = field(default_factory=list)
    running: bool = True
    closing: str = "fake"
    without: tuple[str, ...] = ()
    bound_to_thread: bool = True
    results: object = None
    saves_concurrently: bool = True
    collectors: Collector = field(default_factory=Collectors)
    close_for_other: Callable[[], None] | None = None

    @property
    def note_step(self) -> Callable[[int | None, int], None] | None:
        """Accept steps later if the test wants it."""
        later = self.backend.only_notes_steps
        return (lambda number, _: self.begin_step(number)) if later else None

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Return what the test set."""
        return self.backend.fallbacks

    def blocked_by(self) -> str | None:
        """Return what the test set."""
        return self.backend.in_the_way

    def load(self, *, inside_step: bool) -> Load | None:  # noqa: ARG002
        """Return what the test set."""
        return self.backend.loads() if self.backend.loads else None

    def start(self) -> None:
        """Note it."""
        self._note("start")

    def begin_step(self, number: int | None) -> None:
        """Note the number."""
        self._note("begin_step")
        if number is not None:
            self.steps.append(number)

    def close(self) -> None:
        """Note it."""
        self._note("close")
        self.running = False

    def save(self, path: Path) -> Saved:
        """Write the steps."""
        self._note("save")
        path.write_text(json.dumps({"traceEvents": [], "steps": self.steps}))
        return Saved(cut=self.backend.cut)

    def before_another_profiler(self, close_for_other: Callable[[], None]) -> None:
        """Keep it, for the test to call."""
        self.close_for_other = close_for_other

    def discard(self) -> None:
        """Note it."""
        self.running = False
        self._note("discard")

    def abandon(self) -> None:
        """Note it."""
        self.running = False
        self._note("abandon")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.backend.maybe_fail(call)


class HandExporter(Exporter):
    """An exporter without a thread: it saves at once, or when the test says so.

    Args:
        attempt: As for the exporter.
        hold: Wait for :meth:`finish`.
    """

    def __init__(self, attempt: Attempt, *, hold: bool = False) -> None:
        super().__init__(attempt)
        self.hold = hold

    def start(self) -> None:
        """Start nothing."""

    def submit(self, export: Export) -> None:
        """Save now, or hold."""
        super().submit(export)
        if not self.hold:
            self.finish()

    def finish(self) -> None:
        """Save what is held."""
        self.wait()
