"""The process of :class:`dynprof.analysis.runs.executors.Workers`: runs one task after another.

It reads tasks from standard input, and writes results to the original standard output. Code that
prints during a task prints to standard error.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from concurrent.futures import Future


def main() -> None:
    """Serve until the parent process has ended, and then end even during a task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this one
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    tasks = os.fdopen(sys.stdin.fileno(), "rb", closefd=False)
    with ThreadPoolExecutor(1) as thread:
        while tasks.peek(1):  # empty: the parent has closed it
            function, arguments, named = pickle.load(tasks)  # noqa: S301 - from our own
            done = thread.submit(function, *arguments, **named)
            done.add_done_callback(partial(_answer, results))
        os._exit(0)


def _answer(results: BinaryIO, done: Future[object]) -> None:
    error = done.exception()
    words = f"{type(error).__name__}: {error}" if error else ""
    results.write(ForkingPickler.dumps((words, None if error else done.result())))
    results.flush()


if __name__ == "__main__":
    main()
