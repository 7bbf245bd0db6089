"""What one profiler can do in a process."""

from __future__ import annotations

from dataclasses import dataclass

MARKS = "marks"
"""The backend that records the script's marks alone; nobody chooses it but ``Level_none``."""


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
    """

    backend: str
    activities: tuple[str, ...] = ()
    missing: str = ""
    lacks: tuple[Lack, ...] = ()

    def __str__(self) -> str:
        return f"{self.backend} ({self.missing or ', '.join(self.activities)})"
