"""Has torch itself end a recording and collect its events, on the calling thread."""

from __future__ import annotations

import contextlib
from typing import Any

from dynprof.backends.call_tracing import stop_tracing_calls
from dynprof.backends.closing import usable
from dynprof.backends.quiescence import let_others_leave
from dynprof.errors import BackendError


def end_in_place(profiler: Any, *, all_threads: bool, traces_calls: bool) -> None:
    """End it once no other thread can be amid what torch is about to free.

    Args:
        profiler: A ``torch.profiler.profile`` that is running.
        all_threads: Whether it records the operators of all threads.
        traces_calls: Whether it traces calls of Python, which it does on all threads.
    """
    if traces_calls:
        stop_tracing_calls()
    if all_threads:
        with contextlib.suppress(BackendError):  # as torch does it, where it must
            usable().settle_all()
    elif traces_calls:
        let_others_leave()
    profiler.stop_trace()
