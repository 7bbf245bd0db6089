"""Two processes that read one trace: each digests about half of its chunks, and they swap."""

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
"""So many chunks the first one digests while the second one is still being started."""


class Partner:
    """One of the two; a context that never leaves the other one waiting.

    Args:
        number: 0 or 1; the second one is started by the first.
        other: What leads to the other one.
    """

    def __init__(self, number: int, other: Connection[Any, Any]) -> None:
        self._number = number
        self._other = other
        self._sent = self._received = False
        self._handing: threading.Thread | None = None

    def takes(self, chunk: int) -> bool:
        """Return whether a chunk is to be digested by this one, by its number from 0."""
        by_first = chunk < _AHEAD or chunk % 2 == 0
        return by_first == (self._number == 0)

    def swap(self, own: list[Any] | None) -> list[Any] | None:
        """Return what the other one has, in exchange; None stands for having failed.

        One speaks first while the other listens: a pipe holds less than either has to say.

        Raises:
            CaptureError: The other one has ended.
        """
        try:
            if self._number == 0:
                self._send(own)
            theirs: list[Any] | None = self._receive()
            if self._number == 1:
                self._send(own)
        except (EOFError, OSError) as error:
            self._sent = self._received = True
            raise CaptureError(_ENDED) from error
        return theirs

    def share(self, make: Callable[[], Found]) -> Found:
        """Return what only the second one makes, once, and hands over.

        Raises:
            CaptureError: The other one has ended.
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
        self._handing.start()  # a pipe holds less, and the other one asks when it needs it
        return made

    def _hand_over(self, packed: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody wants it any more
            self._other.send_bytes(packed)

    def finish(self) -> None:
        """Wait until the other one has what was made for it, or is gone."""
        if self._handing:
            self._handing.join()

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
        with contextlib.suppress(EOFError, OSError):  # nobody waits any more
            if self._number == 0 and not self._sent:
                self._send(None)
            if not self._received:
                self._other.recv_bytes()
            if not self._sent:
                self._send(None)
