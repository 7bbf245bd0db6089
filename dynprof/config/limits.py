"""What a window may cost: the part of the config that says so."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dynprof.config.effects import SAME, Effect, NoEffect
from dynprof.config.section import Section


class Limits(Section):
    """What a window may cost before it closes early; null switches a limit off (max_events: 0)."""

    max_seconds: Annotated[
        float | None,
        Field(
            gt=0,
            le=1e9,
            description="Close at the first step end after this many seconds; where all threads "
            "are recorded and none has ended a step for a minute, without one.",
        ),
        SAME,
    ] = 3600
    max_memory_mb: Annotated[
        float | None,
        Field(
            gt=0,
            le=1e9,
            description="Close at the first step end at which this process has grown by this "
            "many MB (10^6 bytes) of resident memory since the window opened, or before which to "
            "save what it has would take more than half of the memory that is free: of the "
            "machine, the container or the process's own limits. Asked every 50 ms or more "
            "often, every 250 ms where marks alone are recorded.",
        ),
        SAME,
    ] = 4096
    max_events: Annotated[
        int,
        Field(
            ge=0,
            le=10**12,
            description="Close at the last step end before the window has more events than this, "
            "of which the default takes about ten seconds to save; 0: no limit. The number is "
            "estimated while it records. Inside a step the window closes at twice as many.",
        ),
        Effect(
            torch="yes",
            python=NoEffect("VizTracer keeps the newest 500,000 calls, whatever this says"),
            npu=NoEffect("torch_npu writes to disk as it records"),
            marks=NoEffect("marks are few"),
        ),
    ] = 1_000_000
    min_free_disk_mb: Annotated[
        float | None,
        Field(
            ge=0,
            le=1e12,
            description="Do not open a window, and give up saving one, with less than this many "
            "MB (10^6 bytes) free where the capture goes.",
        ),
        SAME,
    ] = 1024
