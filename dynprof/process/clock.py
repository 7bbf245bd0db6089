"""The two clocks that dynprof reads, replaceable in tests."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now_s(self) -> float:
        """Return monotonic seconds, for durations."""

    def wall_s(self) -> float:
        """Return seconds since the epoch, for people and file names."""


class SystemClock:
    """The clocks of the machine."""

    now_s = staticmethod(time.perf_counter)
    wall_s = staticmethod(time.time)


def local(wall_s: float) -> str:
    """Return the time of day as the log shows it: local, to the millisecond."""
    return datetime.fromtimestamp(wall_s).astimezone().strftime("%H:%M:%S.%f")[:-3]


def iso(wall_s: float) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(wall_s, timezone.utc).isoformat(timespec="milliseconds")
