"""How captures get to their place: the part of the config that says so."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dynprof.config.effects import SAME
from dynprof.config.patterns import PATH_PATTERN
from dynprof.config.section import Section


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
