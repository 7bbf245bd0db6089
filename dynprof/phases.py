"""Phases of a step as ranges that the script sets itself, for loops that no plugin knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dynprof.marks import open_ranges
from dynprof.mstx import annotate, range_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Item = TypeVar("Item")

DOMAIN = "phases"
"""The domain of all phases, including those of the plugin."""
LOADING = "dataloader"


def phase(name: str) -> annotate:
    """Return a range in the domain of phases, as a context manager or a decorator.

    Args:
        name: A name that the tables know: ``dataloader`` (or ``load``), ``forward``,
            ``backward``, ``optimizer``, ``checkpoint``; or any other.
    """
    return annotate(name, domain=DOMAIN)


def iterate(items: Iterable[Item], name: str = LOADING) -> Iterator[Item]:
    """Yield items; the time until each item comes is a phase.

    Args:
        items: A loader, or anything else to iterate.
        name: The name of the phase; as the message of a mark.
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
