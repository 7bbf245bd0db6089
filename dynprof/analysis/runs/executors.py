"""Executors that analyse traces: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from dynprof.errors import CaptureError, reason
from dynprof.extras import install
from dynprof.runtime.fresh_interpreter import command, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection


class Inline(Executor):
    """Runs a task at once, in this process."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the task, and return its completed future."""
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


class Workers(Executor):
    """Runs tasks in fresh interpreters of dynprof's own.

    Processes of multiprocessing would import the caller's script. They would also find modules in
    the working directory, where any user may have put some.

    Args:
        count: The number of processes.
        inherited: A connection that the first one inherits, under the same number; it is then
            closed here.
        shared: Descriptors that all processes inherit.
        places: The paths and URLs that they work on.
    """

    def __init__(
        self,
        count: int,
        inherited: Connection[Any, Any] | None = None,
        shared: tuple[int, ...] = (),
        places: Iterable[object] = (),
    ) -> None:
        self._inherited, self._shared = inherited, shared
        self._places = tuple(map(str, places))
        self._threads = ThreadPoolExecutor(count)  # a thread waits for each process
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the future of a task that one of the processes runs."""
        return self._threads.submit(self._run, (function, args, kwargs))

    def end(self) -> None:
        """End the processes, even during a task."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._all:
            process.kill()
        self._threads.shutdown()
        for process in self._all:
            process.communicate()

    def _run(self, task: tuple[Any, ...]) -> Any:
        process = self._idle_process()
        try:
            _send(process, task)
            problem, result = pickle.load(_pipe(process.stdout))  # noqa: S301 - our own process
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise ChildProcessError(f"with code {process.wait()}") from None
        self._idle.put(process)
        if problem:
            raise ChildProcessError(problem)
        return result

    def _idle_process(self) -> subprocess.Popen[bytes]:
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        given, self._inherited = self._inherited, None
        with given or contextlib.nullcontext():  # closed even if the start fails
            process = subprocess.Popen(
                command("dynprof.analysis.runs.executors"),
                env=environment(*self._places),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(*self._shared, *((given.fileno(),) if given else ())),
            )
        self._all.append(process)
        return process


def _send(process: subprocess.Popen[bytes], what: object) -> None:
    pipe = _pipe(process.stdin)
    pipe.write(ForkingPickler.dumps(what))
    pipe.flush()


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    if end is None:
        raise BrokenPipeError
    return end


@contextlib.contextmanager
def processes(count: int, places: Iterable[object] = ()) -> Iterator[Executor]:
    """Yield an executor with ``count`` processes of this machine; with 1, this process.

    Args:
        count: The number of processes.
        places: The paths and URLs that they work on.
    """
    if count <= 1:
        yield Inline()
        return
    with closing(Workers(count, places=places)) as workers:
        yield workers


@contextlib.contextmanager
def closing(workers: Workers) -> Iterator[Workers]:
    """End the processes at exit: all tasks are done then, or no longer needed."""
    try:
        yield workers
    finally:
        workers.end()


@contextlib.contextmanager
def dask(scheduler: str) -> Iterator[Executor]:
    """Yield the workers of a Dask cluster, on which dynprof is installed too.

    Args:
        scheduler: The address, such as ``tcp://10.0.0.1:8786``, or the scheduler's file.

    Raises:
        CaptureError: Dask is not installed, or the cluster cannot be reached.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise CaptureError(install("a Dask cluster", "dask", "dask")) from error
    named = {"scheduler_file": scheduler} if scheduler.endswith(".json") else {"address": scheduler}
    try:
        client = Client(**named)
    except (OSError, ValueError) as error:
        raise CaptureError(f"no Dask scheduler answers at {scheduler}: {reason(error)}") from error
    with client:
        yield client.get_executor(pure=False)


def _serve() -> None:
    """Run one task after another as a process of :class:`Workers`, until the parent has ended.

    Code that prints during a task prints to standard error, because standard output has results.
    """
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
    _serve()
