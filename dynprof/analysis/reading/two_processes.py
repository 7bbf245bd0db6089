"""Two processes that read one trace: each digests about half of its chunks, then they swap."""

from __future__ import annotations

import contextlib
import pickle
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import TracebackType


Found = TypeVar("Found")
_ENDED = "the process that shared the work on it ended"
_AHEAD = 2
"""Chunks that the first process digests while the second one is starting."""


class Partner:
    """One of the two processes; a context that never leaves the other one waiting.

    Args:
        number: 0, or 1 for the process that the first one starts.
        other: The connection to the other process.
    """

    def __init__(self, number: int, other: Connection[Any, Any]) -> None:
        self._number = number
        self._other = other
        self._sent = self._received = False
        self._handing: threading.Thread | None = None

    def takes(self, chunk: int) -> bool:
        """Return whether this process digests a chunk, by its number from 0."""
        by_first = chunk < _AHEAD or chunk % 2 == 0
        return by_first == (self._number == 0)

    def swap(self, own: list[Any] | None) -> list[Any] | None:
        """Send our chunks, and return those of the other process; None means that one failed.

        The first one sends while the second one receives: a pipe cannot buffer the chunks.

        Raises:
            CaptureError: The other process has ended.
        """
        try:
            if self._number == 0:
                self._send(own)
            received: list[Any] | None = self._receive()
            if self._number == 1:
                self._send(own)
        except (EOFError, OSError) as error:
            self._sent = self._received = True
            raise CaptureError(_ENDED) from error
        return received

    def share(self, make: Callable[[], Found]) -> Found:
        """Return what only the second process makes, and sends to the first one.

        Raises:
            CaptureError: The other process has ended.
        """
        if self._number == 0:
            try:
                found: Found = pickle.loads(self._other.recv_bytes())  # noqa: S301 - from our own
            except (EOFError, OSError) as error:
                raise CaptureError(_ENDED) from error
            return found
        made = make()
        packed = pickle.dumps(made)
        self._handing = threading.Thread(target=self._hand_over, args=(packed,))
        self._handing.start()  # a pipe cannot buffer it, and the other one reads it later
        return made

    def _hand_over(self, packed: bytes) -> None:
        with contextlib.suppress(OSError):  # the other process has ended
            self._other.send_bytes(packed)

    def finish(self) -> None:
        """Wait until the other process has received what was made for it, or has ended."""
        if self._handing:
            self._handing.join()

    def _send(self, own: list[Any] | None) -> None:
        self._other.send(own)
        self._sent = True

    def _receive(self) -> list[Any] | None:
        packed = self._other.recv_bytes()
        self._received = True
        received: list[Any] | None = pickle.loads(packed)  # noqa: S301 - from our own process
        return received

    def __enter__(self) -> Partner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the swap, so that neither process waits for ever."""
        with contextlib.suppress(EOFError, OSError):  # the other process has ended
            if self._number == 0 and not self._sent:
                self._send(None)
            if not self._received:
                self._other.recv_bytes()
            if not self._sent:
                self._send(None)
