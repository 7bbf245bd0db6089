"""The parts of the config that nest: limits of cost, storage, and how ranks agree."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dynprof.config.effects import PATH_PATTERN, SAME, Effect, NoEffect, Section


class AgreementConfig(Section):
    """What the ranks of a process group do that agree on a window."""

    patience_s: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            description="A rank that is busy with its window before, does not answer, or stands "
            "still where others go on, if no start step is named, delays the start for so many "
            "seconds; then it is left out by name.",
        ),
        SAME,
    ] = 30
    unable: Annotated[
        Literal["refuse", "downgrade"],
        Field(
            description="Where one rank cannot serve the request, or only with less than the "
            "others: refuse it on all, or record on all what they have in common."
        ),
        SAME,
    ] = "refuse"


class StorageConfig(Section):
    """How captures get to ``prof_dir``, where other ranks write as well."""

    scratch_dir: Annotated[
        Annotated[str, Field(pattern=PATH_PATTERN, max_length=4096)] | None,
        Field(
            description="Put each capture together in this directory of the machine's own, "
            "relative to the one that init() watches, and move it to prof_dir from there; null: "
            "directly there, and in `outgoing` of the watched one where prof_dir is a URL.",
            examples=[None, "/local/scratch"],
        ),
        SAME,
    ] = None
    spread_s: Annotated[
        float | None,
        Field(
            ge=0,
            le=86_400,
            description="The ranks that record begin to write into prof_dir one after the other, "
            "spread over so many seconds; null: 20 ms between one and the next, 60 s in all at "
            "most, where prof_dir is a URL or on a network file system.",
        ),
        SAME,
    ] = None
    retry_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="Where a capture cannot be moved to prof_dir, try again for so long; then "
            "it stays where it was put together, and the log says where.",
        ),
        SAME,
    ] = 600


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
