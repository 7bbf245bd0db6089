"""Two processes that read one trace: each digests every other chunk, and they swap."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from types import TracebackType


class Partner:
    """One of the two; a context that never leaves the other one waiting.

    Args:
        number: 0 or 1.
        other: What leads to the other one.

    Attributes:
        number: 0 or 1; of the chunks' numbers, its own leave this when divided by two.
    """

    def __init__(self, number: int, other: Connection[Any, Any]) -> None:
        self.number = number
        self._other = other
        self._sent = self._received = False

    def swap(self, own: list[Any] | None) -> list[Any] | None:
        """Return what the other one has, in exchange; None stands for having failed.

        One speaks first while the other listens: a pipe holds less than either has to say.
        """
        if self.number == 0:
            self._send(own)
        theirs: list[Any] | None = self._receive()
        if self.number == 1:
            self._send(own)
        return theirs

    def _send(self, own: list[Any] | None) -> None:
        self._other.send(own)
        self._sent = True

    def _receive(self) -> list[Any] | None:
        packed = self._other.recv_bytes()
        self._received = True
        theirs: list[Any] | None = pickle.loads(packed)  # noqa: S301 - from our own process
        return theirs

    def __enter__(self) -> Partner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say and hear what is still to be said and heard, so that neither waits for ever."""
        if self.number == 0 and not self._sent:
            self._send(None)
        if not self._received:
            self._other.recv_bytes()
        if not self._sent:
            self._send(None)
