"""Quiet series: imagined jobs without a fault, replayed with a virtual clock.

Each has evaluations, checkpoints, recompilations, slow batches, a warm-up, and steps that vary.
``tests/pace_series.py`` makes them. In a long step the main thread is imagined to run Python code
in four of five seconds, as between long calls. It uses a tenth of a CPU.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.tables import print_table
from dynprof.config import WatchConfig
from dynprof.journal.pace_changes import PaceChanges
from dynprof.requests.inbox import Inbox
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.session.periodic_checks import ProgressDetector, StuckStepCheck
from dynprof.testing import FakeClock
from dynprof.watch.sampler import Sampler, SlowStep
from dynprof.windows.cost_account import CostAccount
from tests.pace_series import DAY_S, Series, quiet

if TYPE_CHECKING:
    from dynprof.journal.journal import Journal
    from dynprof.journal.stack_dump import StackDumps

SERIES = 30
"""Quiet series."""
WATCHED_S = 2880.0
"""Seconds of each series that the watch sees: 24 hours in all; it times each single step."""
HOUR_S = 3600.0
RUNS_PYTHON = 0.8
"""Share of the seconds in a long step in which the main thread runs Python code."""


@dataclass
class Notes:
    """Takes what a check writes, in place of the log, the stacks and the events."""

    status_fields: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def warning(self, text: str) -> None:
        """Keep a warning."""
        self.warnings.append(text)

    def set_status(self, **fields: object) -> None:
        """Keep nothing."""

    def take(self) -> str:
        """Write no stacks."""
        return ""

    def info(self, text: str) -> None:
        """Keep nothing."""

    @property
    def events(self) -> Notes:
        """Where events go."""
        return self

    def report(self, *_: object, **__: object) -> None:
        """Keep nothing."""


def changes_of_pace(series: Series) -> int:
    """Return the number of changes of the pace that are found."""
    changes = PaceChanges()
    return sum(1 for at_s, step in series.readings() if changes.add(at_s, step))


def stuck_steps(series: Series) -> int:
    """Return the number of warnings about a step that takes too long."""
    clock, inbox, notes = FakeClock(0.0, 0.0), Inbox(lambda: None), Notes()
    costs = CostAccount(clock, inbox)
    journal, stacks = cast("Journal", notes), cast("StackDumps", notes)
    chance = np.random.default_rng(series.seed)
    progress = ProgressDetector(clock, lambda: (chance.random() < RUNS_PYTHON, clock.now * 0.1))
    root = Path("prof_config")
    check = StuckStepCheck(root, inbox, costs, journal, clock, stacks, progress, lambda: "")
    for at_s, step in series.readings():
        clock.now, inbox.step = at_s, step
        costs.sample()
        check.check()
    return sum(text.startswith("stuck:") for text in notes.warnings)


def slow_steps(series: Series, slower_than: float) -> tuple[int, int]:
    """Return the numbers of records of slow steps: of injected ones, and of others.

    The records of an hour are limited as they are by default.
    """
    settings, now_ns, slow = WatchConfig(slower_than=slower_than), 0, list[SlowStep]()
    inbox = Inbox(lambda: None)
    sampler = Sampler(
        inbox,
        settings,
        ErrorBoundary(StderrNotes()),
        is_busy=lambda: False,
        on_slow=slow.append,
        now_ns=lambda: now_ns,
    )
    sampler.thread = threading.Thread(target=int)  # the loop below looks instead
    sampler.start()
    ends_ns = (series.ends_s() * 1e9).astype(int)
    second_ns = 10**9
    for ended_ns in ends_ns[: np.searchsorted(ends_ns, int(series.length_s * 1e9))].tolist():
        while ended_ns > second_ns:
            now_ns = second_ns
            sampler.look()
            second_ns += 10**9
        now_ns, inbox.step = ended_ns, inbox.step + 1
        inbox.on_due()
    now_ns = second_ns
    sampler.look()
    sampler.stop()
    written, injected = deque[int](maxlen=settings.max_per_hour), 0
    records = []
    for one in slow:
        is_full = len(written) == settings.max_per_hour
        if not is_full or one.ended_ns - written[0] > HOUR_S * 1e9:
            written.append(one.ended_ns)
            records.append(one)
    injected = sum(_is_injected(series, one.number) for one in records)
    return injected, len(records) - injected


def _is_injected(series: Series, step: int) -> bool:
    """Return whether a step is one that the series makes longer."""
    return step < series.warm_up or any(not step % stalls.every for stalls in series.stalls)


def print_quiet() -> None:
    """Replay all series and print the alarms."""
    days = [quiet(seed) for seed in range(SERIES)]
    parts = [replace(one, length_s=WATCHED_S, pauses=()) for one in days]
    hours, short = SERIES * DAY_S / HOUR_S, SERIES * WATCHED_S / HOUR_S
    rows = [
        _row("the pace changed", hours, sum(map(changes_of_pace, days))),
        _row("stuck", hours, sum(map(stuck_steps, days))),
    ]
    for slower_than in (1.5, 3.0):
        found = [slow_steps(one, slower_than) for one in parts]
        injected, others = (sum(column) for column in zip(*found, strict=True))
        rows.append(
            _row(f"a slow step, slower_than {slower_than:g}", short, others, f"{injected:,}")
        )
    head = ("message", "hours", "false alarms", "in 24 hours", "of longer steps, rightly")
    print_table(f"{SERIES} quiet series", head, rows)


def _row(name: str, hours: float, alarms: int, right: str = "-") -> tuple[str, ...]:
    return name, f"{hours:,.0f}", f"{alarms:,}", f"{alarms * 24 / hours:.2f}", right
