"""How the ranks of a process group agree: the part of the config that says so."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dynprof.config.effects import SAME
from dynprof.config.section import Section


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
