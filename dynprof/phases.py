"""Phases of a step, for loops that no plugin knows: the same ranges, set by the script itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dynprof.marks import open_ranges
from dynprof.mstx import annotate, range_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Item = TypeVar("Item")

DOMAIN = "phases"
"""The domain of all phases, the plugin's too."""
LOADING = "dataloader"


def phase(name: str) -> annotate:
    """Return a range in the domain of phases, as a context manager or a decorator.

    Args:
        name: What the tables know: ``dataloader`` (or ``load``), ``forward``, ``backward``,
            ``optimizer``, ``checkpoint``; or any other.
    """
    return annotate(name, domain=DOMAIN)


def iterate(items: Iterable[Item], name: str = LOADING) -> Iterator[Item]:
    """Yield items; the time until each comes is a phase.

    Args:
        items: A loader, or anything else to iterate.
        name: What to call the phase; as the message of a mark.
    """
    remaining = iter(items)
    while True:
        number = range_start(name, domain=DOMAIN)
        try:
            item = next(remaining)
        except StopIteration:
            return
        finally:
            open_ranges.end(number)
        yield item


__all__ = ["DOMAIN", "iterate", "phase"]
