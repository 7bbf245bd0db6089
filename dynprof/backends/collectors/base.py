"""What a collector of a recording is, and the events that it adds to the trace."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
"""An event of the Chrome trace format, but for ``ts`` and ``dur``: whole nanoseconds, the former
since the epoch."""
Events = Iterable[Event]


class Collector:
    """Records something beside the profiler, from the first recorded step to the last.

    ``start`` and ``stop`` run inside ``step()``; ``events`` and ``save`` once afterwards, on
    another thread; ``discard`` or ``abandon`` instead of what is left.
    """

    def start(self) -> None:
        """Begin; must be fast."""

    def stop(self) -> None:
        """End, also twice, also where it was not started; must be fast."""

    def discard(self) -> None:
        """End and forget, instead of what is left."""
        self.stop()

    def abandon(self) -> None:
        """End in a child that was just forked; must take no lock."""

    def events(self) -> Events:
        """Return what it adds to the trace."""
        return ()

    def save(self, stem: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Write files of its own, whose paths begin with ``stem``.

        Returns:
            What is missing or odd, each a sentence.
        """
        return ()


class Unavailable(Collector):
    """Records nothing, and says what is missing.

    Args:
        what: In words.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def save(self, stem: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Say it."""
        return (self._what,)


class Collectors(Collector):
    """Several of them as one."""

    def __init__(self, members: Iterable[Collector] = ()) -> None:
        self._members = tuple(members)

    def start(self) -> None:
        """Begin all."""
        for member in self._members:
            member.start()

    def stop(self) -> None:
        """End all."""
        for member in self._members:
            member.stop()

    def discard(self) -> None:
        """End and forget all."""
        for member in self._members:
            member.discard()

    def abandon(self) -> None:
        """End all in a forked child."""
        for member in self._members:
            member.abandon()

    def events(self) -> Events:
        """Return what all add to the trace."""
        return chain.from_iterable(member.events() for member in self._members)

    def save(self, stem: Path) -> tuple[str, ...]:
        """Write the files of all; one that cannot be written does not cost the trace."""
        return tuple(chain.from_iterable(_saved(member, stem) for member in self._members))


def _saved(member: Collector, stem: Path) -> tuple[str, ...]:
    try:
        return member.save(stem)
    except OSError as error:
        return (f"what {type(member).__name__} recorded is lost: {error}",)


def named_track(number: int, name: str) -> Event:
    """Return the event that gives a track of this process its name.

    Args:
        number: Stands where a thread's id stands, and must not be one.
        name: What viewers show.
    """
    return {
        "ph": "M",
        "name": "thread_name",
        "pid": os.getpid(),
        "tid": number,
        "ts": 0,
        "args": {"name": name},
    }
