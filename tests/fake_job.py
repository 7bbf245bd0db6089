"""A training job that a test drives: a real session with a fake profiler."""

from __future__ import annotations

import json
from logging import LogRecord
from typing import TYPE_CHECKING, Any

from dynprof.captures.manifest import Manifest, load_manifest
from dynprof.requests.request import Edit
from dynprof.runtime.layout import Layout
from dynprof.runtime.rank import Rank
from dynprof.session.session import Session
from dynprof.steps.base import StepOption, step_option_of
from dynprof.testing import FakeBackend, FakeClock, HandExporter
from dynprof.windows.process_context import ProcessContext

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.exporter import Attempt


class Job:
    """A training job whose session moves only when the test calls it."""

    def __init__(
        self,
        root: Path,
        *,
        hold: bool = False,
        memory_mb: list[float] | None = None,
        free_mb: float = 1e6,
        steps: str | float = "script",
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.clock, self.backend = root, FakeClock(), FakeBackend()
        self.exporters: list[HandExporter] = []
        readings, self.free_mb = iter(memory_mb or []), free_mb
        self.main_runs, self.main_cpu_s = False, 0.0
        process = ProcessContext(
            Layout(root, 0, "host", 42),
            Rank(0, 1, "test"),
            (self.backend,),
            clock=self.clock,
            memory_mb=lambda: next(readings, 0.0),
            free_mb=lambda: self.free_mb,
            look_at=self._look_at,
        )
        self.session = Session(
            process,
            make_exporter=lambda attempt: self._exporter(attempt, hold=hold),
            steps=step_option_of(steps, otherwise=StepOption("script")),
        )

    def _exporter(self, attempt: Attempt, *, hold: bool) -> HandExporter:
        self.exporters.append(HandExporter(attempt, hold=hold))
        return self.exporters[-1]

    @property
    def saving(self) -> HandExporter:
        """The exporter."""
        return self.exporters[0]

    def _look_at(self, _: object) -> tuple[bool, float]:
        return self.main_runs, self.main_cpu_s

    def edit(self, **config: Any) -> None:
        """Save a config."""
        self.clock.advance(1)
        self.session.handle(Edit(json.dumps(config).encode(), self.clock.wall))

    def step(self, times: int = 1) -> None:
        """Take training steps of 10 ms."""
        for _ in range(times):
            self.clock.advance(0.01)
            self.session.inbox.step += 1
            if self.session.inbox.due:
                self.session.inbox.on_due()

    @property
    def state(self) -> str:
        """The state that the status names."""
        return self.session.status().state

    def manifests(self) -> list[Manifest]:
        """Return the manifests written, in the order of their requests."""
        found = map(load_manifest, self.root.glob("**/rank_0.info.json"))
        return sorted(found, key=lambda m: m.request.number)

    def shown(self, path: Path) -> str:
        """Return a path as the status names it."""
        return str(path.relative_to(self.root))

    def log(self) -> str:
        """Return what the session said so far."""
        lines = []
        queue = self.session._journal._lines
        while not queue.empty():
            record = queue.get()
            lines.append(record.getMessage() if isinstance(record, LogRecord) else "")
        return "\n".join(lines)
