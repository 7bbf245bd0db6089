"""The base class of a recording's collectors, and the events that they add to the trace."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
"""An event of the Chrome trace format, except that ``ts`` and ``dur`` are whole nanoseconds;
``ts`` counts from the epoch."""
Events = Iterable[Event]


class Collector:
    """Records along with the profiler, from the first recorded step to the last.

    ``start`` and ``stop`` run inside ``step()``. ``events`` and ``save`` run once afterwards, on
    another thread. ``discard`` or ``abandon`` replaces the remaining calls.
    """

    def start(self) -> None:
        """Start recording; must be fast."""

    def stop(self) -> None:
        """Stop recording; must be fast. May be called twice, or without ``start``."""

    def discard(self) -> None:
        """Stop and drop the data; replaces the remaining calls."""
        self.stop()

    def abandon(self) -> None:
        """Stop in a child that was just forked; must take no lock."""

    def events(self) -> Events:
        """Return the events that it adds to the trace."""
        return ()

    def save(self, stem: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Write its own files, whose paths begin with ``stem``.

        Returns:
            What is missing or odd, each a sentence.
        """
        return ()


class Unavailable(Collector):
    """Records nothing and reports what is missing.

    Args:
        what: A sentence that says what is missing.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def save(self, stem: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Return the sentence."""
        return (self._what,)


class Collectors(Collector):
    """Several collectors as one."""

    def __init__(self, members: Iterable[Collector] = ()) -> None:
        self._members = tuple(members)

    def start(self) -> None:
        """Start all."""
        for member in self._members:
            member.start()

    def stop(self) -> None:
        """Stop all."""
        for member in self._members:
            member.stop()

    def discard(self) -> None:
        """Stop all and drop their data."""
        for member in self._members:
            member.discard()

    def abandon(self) -> None:
        """Stop all in a forked child."""
        for member in self._members:
            member.abandon()

    def events(self) -> Events:
        """Return the events of all."""
        return chain.from_iterable(member.events() for member in self._members)

    def save(self, stem: Path) -> tuple[str, ...]:
        """Write the files of all; a failure costs that collector's file, not the trace."""
        return tuple(chain.from_iterable(_saved(member, stem) for member in self._members))


def _saved(member: Collector, stem: Path) -> tuple[str, ...]:
    try:
        return member.save(stem)
    except OSError as error:
        return (f"what {type(member).__name__} recorded is lost: {error}",)


def named_track(number: int, name: str) -> Event:
    """Return the event that names a track of this process.

    Args:
        number: The track's number, in place of a thread's id; must not be one.
        name: The name that viewers show.
    """
    return {
        "ph": "M",
        "name": "thread_name",
        "pid": os.getpid(),
        "tid": number,
        "ts": 0,
        "args": {"name": name},
    }
