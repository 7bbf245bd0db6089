"""What dynprof says on the job's standard error, which may be gone, closed, full or anything."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def say(text: str) -> None:
    """Print a line for whoever watches the job; where nobody can be told, do nothing."""
    with contextlib.suppress(Exception), _broken_pipes_are_errors():  # the script may have put any
        _write(f"dynprof: {text}\n")  # object in its place


def _write(text: str) -> None:
    stream, real = sys.stderr, sys.__stderr__
    if real is not None and stream is real:  # not through its buffer, which is tried again at exit
        real.flush()
        os.write(real.fileno(), text.encode(real.encoding, "backslashreplace"))
    elif stream:
        print(text, end="", file=stream, flush=True)


@contextlib.contextmanager
def _broken_pipes_are_errors() -> Iterator[None]:
    """Let nobody be ended by what dynprof says: the script may have SIGPIPE do what it does in C.

    Its own threads may be ended by what it prints itself, now as ever.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    except BrokenPipeError:
        if signal.SIGPIPE not in before and signal.SIGPIPE in signal.sigpending():
            signal.sigwait({signal.SIGPIPE})
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
