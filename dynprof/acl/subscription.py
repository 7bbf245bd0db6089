"""Operators, delivered while they run."""

from __future__ import annotations

import queue
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.errors import BackendError, SessionError
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from dynprof.backends.torch.operator_stream import OperatorStream

MAX_PENDING = 100_000
"""Most operators that wait for iteration; operators beyond them are counted as lost."""


@dataclass(frozen=True)
class Operator:
    """One operator that ran.

    Attributes:
        name: Its name, such as ``aten::mm``.
        began_ns: Its begin, in ns since the epoch.
        duration_ns: Its duration on the host, in ns, without the delivery.
    """

    name: str
    began_ns: int
    duration_ns: int


class Subscription:
    """Receives operators and passes them on; created by :func:`dynprof.acl.prof.subscribe`.

    Attributes:
        lost: Operators dropped because too many waited.
    """

    def __init__(
        self,
        callback: Callable[[Operator], object] | None,
        on_end: Callable[[Subscription], None],
        call: str,
    ) -> None:
        if "torch" not in sys.modules:
            raise BackendError(f"{call} needs torch, which the script has not imported")
        self.lost = 0
        self._callback, self._on_end = callback, on_end
        self._pending: queue.SimpleQueue[Operator | None] = queue.SimpleQueue()
        self._boundary = ErrorBoundary(StderrNotes())
        self._thread = threading.get_ident()
        self._stream: OperatorStream | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __iter__(self) -> Iterator[Operator]:
        """Yield operators as they come, until the subscription ends."""
        while (operator := self._pending.get()) is not None:
            yield operator
        self._put(None)  # so that another iteration ends too

    def begin(self) -> None:
        """Receive the operators that this thread runs from now on."""
        from dynprof.backends.torch.operator_stream import OperatorStream

        self._stream = OperatorStream(self._take)
        self._stream.__enter__()

    def end(self, call: str = "acl.prof.unsubscribe()") -> None:
        """End the delivery.

        Args:
            call: The script's call, for the error message.

        Raises:
            SessionError: It has ended, or another thread subscribed.
        """
        if self._thread != threading.get_ident():
            raise SessionError(f"{call}: only the thread that subscribed may end the subscription")
        stream = self._stream
        if stream and not stream.is_innermost():
            text = f"{call}: end the TorchDispatchMode that was entered after it first"
            raise SessionError(text)
        self._on_end(self)
        self._stream = None
        if stream:
            stream.__exit__(None, None, None)
        self._put(None)

    def _take(self, name: str, began_ns: int, duration_ns: int) -> None:
        operator = Operator(name, began_ns, duration_ns)
        callback = self._callback
        if callback is None:
            self._put(operator)
        elif self._boundary.attempt("the subscriber", lambda: callback(operator)):
            self._callback = _ignore  # a failing callback is not called again

    def _put(self, operator: Operator | None) -> None:
        if operator is None or self._pending.qsize() < MAX_PENDING:  # the end must arrive
            self._pending.put(operator)
        else:
            self.lost += 1


def _ignore(_: Operator) -> None:
    """Do nothing."""
