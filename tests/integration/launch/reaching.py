"""Whether this system lets a process trace another one of the same user."""

from __future__ import annotations

import functools

import pytest

from dynprof.errors import LaunchError
from dynprof.launch.stopped_thread import StoppedThread
from tests import processes


@functools.cache
def _why_not() -> str:
    with processes.start(["sleep", "100"]) as process:
        try:
            with StoppedThread(process.pid, 10):
                return ""
        except LaunchError as error:
            return str(error)


def needs_reaching() -> None:
    """Skip a test if the system forbids to trace processes."""
    if why := _why_not():
        pytest.skip(f"attaching is forbidden here: {why}")
