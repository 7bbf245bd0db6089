"""What killed processes left unfinished where a script's traces go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.files.layout import host_name
from dynprof.files.leftovers import remove_leftovers
from dynprof.process.standard_error import say

if TYPE_CHECKING:
    from pathlib import Path

_tidied: set[Path] = set()


def tidy(place: Path) -> None:
    """Remove what killed processes of this machine left there, and say so; once for each place."""
    place = place.expanduser().absolute()
    if place in _tidied:
        return
    _tidied.add(place)
    for path in remove_leftovers((place,), host_name(), deep=False):
        say(f"removed {path}, which a killed process left unfinished")
