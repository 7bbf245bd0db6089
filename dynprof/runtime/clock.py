"""The clocks of windows, which tests replace, and times as text."""

from __future__ import annotations

import time
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
    whole_s, ms = _split(wall_s)
    return f"{time.strftime('%H:%M:%S', time.localtime(whole_s))}.{ms:03}"


def iso(wall_s: float) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond."""
    whole_s, ms = _split(wall_s)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole_s))}.{ms:03}+00:00"


def _split(wall_s: float) -> tuple[int, int]:
    """Return whole seconds and milliseconds, cut as :mod:`datetime` cuts them."""
    whole_s, rest_s = divmod(wall_s, 1)
    return divmod(int(whole_s) * 1000 + round(rest_s * 1e6) // 1000, 1000)
