"""Who holds libkineto's one session: dynprof's window, or a profiler of the script's own.

libkineto has one session a process and no way to ask for it. Whoever prepares a profiler takes
the session from whoever had it, on any thread, and then stopping the first one crashes the
process. So the three functions by which ``torch.autograd.profiler`` reaches libkineto are
wrapped, to notice when the script uses them; the script always goes first.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.profiler import profile

COLLECT_WAIT_S = 120.0
"""For so long a profiler of the script's own waits until a window's events are collected."""


class KinetoSession:
    """The one session of this process.

    Attributes:
        script_has_it: Whether a profiler of the script's own is prepared or running.
        lost: Whether the script took the session from a recording that is open.
        prepared: How often somebody other than a window of ours took the session.
    """

    def __init__(self) -> None:
        self.script_has_it = False
        self.lost = False
        self._open = False
        self._ours = threading.local()
        self._watching = False
        self.prepared = 0
        self._collected = threading.Event()
        self._collected.set()

    def watch(self) -> None:
        """Wrap torch's three functions, once."""
        if self._watching:
            return
        self._watching = True
        import torch.autograd.profiler as module

        for name, on_call in (
            ("_prepare_profiler", self._on_prepare),
            ("_enable_profiler", self._on_begin),
            ("_disable_profiler", self._on_end),
        ):
            setattr(module, name, self._wrapped(getattr(module, name), on_call))

    @property
    def has_window(self) -> bool:
        """Whether a window of the operator's is open, and was not disturbed."""
        return self._open and not self.lost

    @property
    def collecting(self) -> bool:
        """Whether a thread collects the events of the last recording."""
        return not self._collected.is_set()

    def prepare(self, profiler: profile) -> None:
        """Take the session for a recording."""
        self.lost, self._open = False, True
        self._call(profiler._prepare_trace)

    def start(self, start_trace: Callable[[], None]) -> None:
        """Begin to record, with the session that was taken."""
        self._call(start_trace)

    def stop(self, stop_trace: Callable[[], None]) -> None:
        """Give the session back."""
        self._open = False
        self._call(stop_trace)

    def wait(self) -> None:
        """Wait while a thread collects the events of the last recording."""
        self._collected.wait(COLLECT_WAIT_S)

    def hand_over(self) -> None:
        """Leave the session to a thread that collects its events."""
        self._open = False
        self._collected.clear()

    def collected(self) -> None:
        """Give the session back; called by that thread."""
        self._collected.set()

    def drop(self, profiler: profile, stop_trace: Callable[[], None]) -> None:
        """Let go of a recording that lost the session.

        Its callbacks may still be pushed on this thread; torch pops them only together with a
        session, so one is taken for that, unless it is the script's.
        """
        self._open = False
        from torch.autograd import _profiler_enabled

        if _profiler_enabled() and not self.script_has_it:
            self._call(profiler._prepare_trace)
            self._call(stop_trace)

    def _call(self, function: Callable[[], None]) -> None:
        self._ours.calling = True
        try:
            function()
        finally:
            self._ours.calling = False

    def _wrapped(self, function: Callable[..., Any], on_call: Callable[[], None]) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not getattr(self._ours, "calling", False):
                on_call()
            return function(*args, **kwargs)

        return call

    def _on_prepare(self) -> None:
        self.prepared += 1
        self._on_begin()

    def _on_begin(self) -> None:
        # Taking the session from a thread that collects would crash; so a script that profiles
        # itself seconds after a window of ours waits for its events.
        self._collected.wait(COLLECT_WAIT_S)
        self.script_has_it = True
        self.lost = self.lost or self._open

    def _on_end(self) -> None:
        self.script_has_it = False


KINETO = KinetoSession()
"""The process has one."""


class ScriptsClaim:
    """The same session, for a recording that the script asked for itself.

    A window of the operator's gives way to it, as to any profiler of the script's own.
    """

    def __init__(self) -> None:
        self._number = 0

    @property
    def lost(self) -> bool:
        """Whether another profiler took the session from this recording."""
        return KINETO.prepared != self._number

    def prepare(self, profiler: profile) -> None:
        """Take the session; waits while another recording's events are collected."""
        profiler._prepare_trace()
        self._number = KINETO.prepared

    def start(self, start_trace: Callable[[], None]) -> None:
        """Begin to record."""
        start_trace()

    def stop(self, stop_trace: Callable[[], None]) -> None:
        """Give the session back."""
        stop_trace()

    def hand_over(self) -> None:
        """Leave the session to a thread that collects its events."""
        KINETO.script_has_it = False
        KINETO.hand_over()

    def collected(self) -> None:
        """Give the session back; called by that thread."""
        KINETO.collected()

    def drop(self, profiler: profile, stop_trace: Callable[[], None]) -> None:
        """Let go of a recording that lost the session, as a window of the operator's does."""
        KINETO.drop(profiler, stop_trace)
