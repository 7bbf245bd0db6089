"""The backend for ``Level_none``: marks and steps only, in any Python, on any device."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from typing import TYPE_CHECKING, Any

from dynprof.backends.base import Saved
from dynprof.backends.collectors import Collectors, collectors_for
from dynprof.requests.capabilities import MARKS, Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.backends.base import MakeFolder
    from dynprof.backends.collectors import Collector
    from dynprof.requests.plan import Plan
    from dynprof.runtime.rank import Rank


class MarksBackend:
    """Records the collectors, without a profiler."""

    name = MARKS
    trace_suffix = "marks.trace.json"

    def capabilities(self) -> Capabilities:
        """Offer the host."""
        return Capabilities(self.name, activities=("CPU",))

    def versions(self) -> dict[str, str]:
        """Return the version of Python."""
        return {"python": platform.python_version()}

    def blocked_by(self, plan: Plan, *, elsewhere: bool = False) -> tuple[()]:  # noqa: ARG002
        """Return nothing: marks can be recorded at any step, next to any profiler."""
        return ()

    def prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> MarksRecording:  # noqa: ARG002
        """Return a recording; there is no profiler to start."""
        place = {"backend": "none", "rank": rank.number, "world_size": rank.world_size}
        members = collectors_for(plan.config.experimental, record_functions=True)
        collectors = Collectors(members)
        return MarksRecording({"distributedInfo": place}, collectors)


class MarksRecording:
    """The steps of a window; its collectors record the marks."""

    closing = "marks alone"
    without = fallbacks = ()
    results = None
    saves_concurrently = True
    bound_to_thread = False

    def __init__(self, facts: dict[str, Any], collectors: Collector) -> None:
        self.collectors = collectors
        self._facts = facts
        self._began_ns = 0
        self._steps: list[tuple[int | None, int]] = []
        self._thread = threading.get_native_id()

    def blocked_by(self) -> str | None:
        """Return None: it can close at any step."""
        return None

    def load(self, *, inside_step: bool) -> None:
        """Return None: marks are few and small."""

    def before_another_profiler(self, close_for_other: Callable[[], None]) -> None:
        """Do nothing: it conflicts with no other profiler."""

    def start(self) -> None:
        """Keep everything from here on."""
        self._began_ns = time.time_ns()

    def begin_step(self, number: int | None) -> None:
        """End the previous step and begin a step."""
        self.note_step(number, time.time_ns())

    def note_step(self, number: int | None, at_ns: int) -> None:
        """Begin a step that began at a wall time in ns."""
        self._steps.append((number, at_ns))

    def close(self) -> None:
        """End the last step."""
        self._steps.append((None, time.time_ns()))

    def save(self, path: Path) -> Saved:
        """Write the steps as a Chrome trace."""
        ends = [at_ns for _, at_ns in self._steps[1:]]
        events = [
            self._event(number, began_ns, ended_ns)
            for (number, began_ns), ended_ns in zip(self._steps, ends, strict=False)
            if number is not None
        ]
        base = {"baseTimeNanoseconds": self._began_ns}
        path.write_text(json.dumps({**base, "traceEvents": events}))
        return Saved(facts=self._facts)

    def _event(self, number: int, began_ns: int, ended_ns: int) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{number}",
            "pid": os.getpid(),
            "tid": self._thread,
            "ts": (began_ns - self._began_ns) / 1000,
            "dur": max(0, ended_ns - began_ns) / 1000,
        }

    def discard(self) -> None:
        """Drop the steps."""
        self._steps.clear()

    abandon = discard
