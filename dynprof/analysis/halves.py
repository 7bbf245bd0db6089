"""Two processes that read one trace: each digests every other frame, and they swap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from types import TracebackType


class Half:
    """One of the two; a context that never leaves the other one waiting.

    Args:
        number: 0 or 1.
        other: What leads to the other one.

    Attributes:
        number: 0 or 1; of the frames' numbers, its own leave this when divided by two.
    """

    def __init__(self, number: int, other: Connection[Any, Any]) -> None:
        self.number = number
        self._other = other
        self._swapped = False

    def swap(self, own: list[Any] | None) -> list[Any] | None:
        """Return what the other one has, in exchange; None stands for having failed.

        One speaks first while the other listens: a pipe holds less than either has to say.
        """
        self._swapped = True
        if self.number == 0:
            self._other.send(own)
        theirs: list[Any] | None = self._other.recv()
        if self.number == 1:
            self._other.send(own)
        return theirs

    def __enter__(self) -> Half:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._swapped:
            self.swap(None)
