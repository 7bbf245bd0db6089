"""Which way a ``torch.profiler`` recording is closed, and where the slow half of it runs."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from dynprof.backends.libtorch import DetachedClose, find
from dynprof.backends.selftest import SELF_TEST
from dynprof.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable


def choose_close(activities: tuple[str, ...]) -> tuple[DetachedClose | None, str]:
    """Return the detached close where it may be used, and how or why not in words."""
    asked = os.environ.get("DYNPROF_CLOSE", "")
    if asked == "inline":
        return None, "inline: DYNPROF_CLOSE=inline"
    if activities != ("CPU",) and asked != "detached":
        return None, "inline: the detached close has not been tried on a device yet"
    if SELF_TEST.answer is None:
        return None, "inline: the self-test of the detached close is still running"
    if SELF_TEST.answer:
        return None, f"inline: {SELF_TEST.answer}"
    try:
        return find(), "detached"
    except BackendError as error:
        return None, f"inline: {error}"


def run_at_low_priority(action: Callable[[], None]) -> None:
    """Run ``action`` on a thread that gives way to all others; raise what it raises.

    Only for work without the GIL: a thread that is kept from the processor while it holds the
    GIL keeps everybody waiting.
    """
    errors: list[BaseException] = []

    def run() -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        try:
            action()
        except BackendError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="dynprof-collect", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending and starts no more threads
        action()
    else:
        thread.join()
    if errors:
        raise errors[0]
