"""Has torch begin a recording, on the calling thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.process.garbage_collector import no_collection

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.backends.kineto import KinetoSession
    from dynprof.backends.script_window_session import ScriptSession


def begin(session: KinetoSession | ScriptSession, start_trace: Callable[[], None]) -> None:
    """Begin it.

    With ``with_stack`` torch 2.13 walks over the states of all threads, as of one moment, and over
    their frames. Where a collection lets another thread run meanwhile, and that one ends, the
    process crashes; so does plain torch.

    Args:
        session: What the recording holds.
        start_trace: Torch's function.
    """
    with no_collection():
        session.start(start_trace)
