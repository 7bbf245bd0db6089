"""libkineto's session, for a recording that the script asked for itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dynprof.backends.kineto import KINETO

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.profiler import profile


class ScriptSession:
    """The same session, for a recording that the script asked for itself.

    A window of the operator's gives way to it, as to any profiler of the script's own.
    """

    give_way: Callable[[], None] | None = None
    lost = False

    def __init__(self) -> None:
        self._thread = threading.current_thread()

    def prepare(self, profiler: profile, owner: object) -> None:  # noqa: ARG002
        """Take the session; waits while another recording's events are collected."""
        self._thread = threading.current_thread()
        profiler._prepare_trace()

    def start(self, start_trace: Callable[[], None]) -> None:
        """Begin to record."""
        start_trace()

    def stop(self, stop_trace: Callable[[], None]) -> None:
        """Give the session back."""
        stop_trace()

    def close(self, owner: object = None) -> None:  # noqa: ARG002
        """Note that the recording has ended."""
        KINETO.release(self._thread)

    def hand_over(self, events: object) -> None:
        """Leave the session to a thread that collects its events."""
        KINETO.release(self._thread)
        KINETO.hand_over(events)
