"""Where traces are analysed: in processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MISSING = "a Dask cluster needs dask: pip install 'dynprof[dask]'"


class Inline(Executor):
    """Does the work at once, in this process."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the future of what was done."""
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


@contextlib.contextmanager
def processes(count: int) -> Iterator[Executor]:
    """Give so many processes of this machine; with one, the work is done here."""
    if count <= 1:
        yield Inline()
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the caller's threads' locks
    with ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent) as pool:
        yield pool


def _end_with_parent() -> None:
    """End this process when the one that started it is killed, which ends no pool by itself."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            multiprocessing.connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def dask(scheduler: str) -> Iterator[Executor]:
    """Give the workers of a Dask cluster; dynprof is installed there too.

    Args:
        scheduler: The address, such as ``tcp://10.0.0.1:8786``, or the scheduler's file.

    Raises:
        CaptureError: Dask is not installed, or the cluster cannot be reached.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise CaptureError(_MISSING) from error
    named = {"scheduler_file": scheduler} if scheduler.endswith(".json") else {"address": scheduler}
    try:
        client = Client(**named)
    except (OSError, ValueError) as error:
        raise CaptureError(f"no Dask scheduler answers at {scheduler}: {error}") from error
    with client:
        yield client.get_executor(pure=False)
