"""What one profiler can do in a process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Offer:
    """What one backend can do in this process.

    Attributes:
        backend: Its name in the config.
        activities: What it can watch here, such as ``("CPU", "CUDA")``.
        missing: Why it cannot serve here; empty where it can.
    """

    backend: str
    activities: tuple[str, ...] = ()
    missing: str = ""

    def __str__(self) -> str:
        return f"{self.backend} ({self.missing or ', '.join(self.activities)})"
