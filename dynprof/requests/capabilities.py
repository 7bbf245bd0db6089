"""Capabilities of one profiler in this process."""

from __future__ import annotations

from dataclasses import dataclass

MARKS = "marks"
"""The backend that records only the script's marks; only ``Level_none`` selects it."""

INLINE_MS = "20 to 45"
"""Milliseconds of training per 10,000 events of a trace, measured in docs/benchmarks.md.

The higher figure is with memory, or with a device.
"""


@dataclass(frozen=True)
class Lack:
    """A setting that the installed version of a profiler serves only in part.

    Attributes:
        setting: Its name in the config, in ``experimental_config``, or in :class:`Script`.
        value: The value that is affected.
        text: The effect, for the remark.
    """

    setting: str
    value: object
    text: str


@dataclass(frozen=True)
class Capabilities:
    """What one backend can do in this process.

    Attributes:
        backend: Its name in the config.
        activities: What it can record here, such as ``("CPU", "CUDA")``.
        missing: Why it cannot serve here; empty if it can.
        lacks: Settings that it serves only in part.
        inline: Why windows close inline, while training waits; empty if they do not, or while the
            self-test that decides this is running.
        inline_on_device: The same, for windows that record a device.
        one_thread: Why a window records only the thread that opens it; empty as for ``inline``.
        uncounted: Why the events of a window are not counted; empty if they are.
        is_testing: Whether the self-test that decides ``inline``, ``inline_on_device`` and
            ``one_thread`` is running.
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
        """Remarks on slower or reduced ways of recording a window with all activities."""
        return fallbacks(self.inline_on_device, self.one_thread, self.uncounted)

    def __str__(self) -> str:
        if self.missing:
            return f"no {self.backend} ({self.missing})"
        return f"{self.backend} ({', '.join(self.activities)})"


def inline_close(why: str) -> str:
    """Return the remark on windows that close inline, with the cost."""
    cost = f"the training pauses for about {INLINE_MS} ms per 10,000 events"
    return f"windows close inline: {cost}; {why}"


def fallbacks(inline: str, one_thread: str, uncounted: str) -> tuple[str, ...]:
    """Return the remarks on slower or reduced ways in which a window is recorded.

    Args:
        inline: Why it closes inline; each argument is empty if it does not apply.
        one_thread: Why it records one thread although all were requested.
        uncounted: Why its events are not counted, so that limits of events and memory do not apply.
    """
    found = [inline_close(inline)] if inline else []
    if one_thread:
        found.append(f"only the thread that opens the window is recorded: {one_thread}")
    if uncounted:
        text = "limits.max_events and the memory that saving takes are not watched"
        found.append(f"{text}: {uncounted}")
    return tuple(found)
