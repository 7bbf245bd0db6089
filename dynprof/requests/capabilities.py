"""What one profiler can do in a process."""

from __future__ import annotations

from dataclasses import dataclass

MARKS = "marks"
"""The backend that records the script's marks alone; nobody chooses it but ``Level_none``."""

INLINE_MS = "20 to 45"
"""Milliseconds of training for each 10,000 events of a trace, measured in docs/benchmarks.md.

The more with memory, or with a device.
"""


@dataclass(frozen=True)
class Lack:
    """A setting that a profiler serves in part only, in the version that is installed.

    Attributes:
        setting: Its name in the config, in its experimental part, or in what a script asks for.
        value: The value of it that is meant.
        text: What comes of it.
    """

    setting: str
    value: object
    text: str


@dataclass(frozen=True)
class Capabilities:
    """What one backend can do in this process.

    Attributes:
        backend: Its name in the config.
        activities: What it can watch here, such as ``("CPU", "CUDA")``.
        missing: Why it cannot serve here; empty where it can.
        lacks: What it serves in part only.
        inline: Why windows close inline, in time of the training; empty where they do not, or where
            the self-test that decides it is still running.
        inline_on_device: The same, for windows that watch a device.
        one_thread: Why a window records only the thread that opens it; empty as for ``inline``.
        uncounted: Why the events of a window are not counted; empty where they are.
        is_testing: Whether the self-test is running, whose answer changes ``inline``,
            ``inline_on_device`` and ``one_thread``.
    """

    backend: str
    activities: tuple[str, ...] = ()
    missing: str = ""
    lacks: tuple[Lack, ...] = ()
    inline: str = ""
    inline_on_device: str = ""
    one_thread: str = ""
    uncounted: str = ""
    is_testing: bool = False

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Slower or lesser ways in which windows of all that it can watch are recorded."""
        return fallbacks(self.inline_on_device, self.one_thread, self.uncounted)

    def __str__(self) -> str:
        return f"{self.backend} ({self.missing or ', '.join(self.activities)})"


def inline_close(why: str) -> str:
    """Return the remark on windows that close inline, with what that costs."""
    cost = f"about {INLINE_MS} ms of training for each 10,000 events"
    return f"windows close inline: {cost}; {why}"


def fallbacks(inline: str, one_thread: str, uncounted: str) -> tuple[str, ...]:
    """Return the remarks on slower or lesser ways in which a window is recorded.

    Args:
        inline: Why it closes inline; this and the others are empty where there is no reason.
        one_thread: Why it records one thread though all were meant.
        uncounted: Why its events are not counted, so that no limit of them or of memory holds.
    """
    found = [inline_close(inline)] if inline else []
    if one_thread:
        found.append(f"only the thread that opens the window is recorded: {one_thread}")
    if uncounted:
        text = "limits.max_events and the memory that saving takes are not watched"
        found.append(f"{text}: {uncounted}")
    return tuple(found)
