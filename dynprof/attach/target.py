"""The process to reach into: another one that gets its number is never taken for it."""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING

import psutil

from dynprof.errors import LaunchError

if TYPE_CHECKING:
    from types import TracebackType


class Target:
    """A process, held by a descriptor that goes on to mean it when its number is another's.

    Where the system has no such descriptors (Linux before 5.3, or a container that forbids them),
    the time at which it was started tells it.

    Args:
        pid: Its id.
        seen: The process as it was when it was chosen; else the one that has the id now.

    Raises:
        LaunchError: There is none, or no longer the one that was chosen.

    Attributes:
        pid: Its id.
    """

    def __init__(self, pid: int, seen: psutil.Process | None = None) -> None:
        self.pid, self._descriptor = pid, -1
        try:
            self._process = seen or psutil.Process(pid)
            self._descriptor = os.pidfd_open(pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            raise LaunchError(f"there is no process {pid}") from None
        except (OSError, AttributeError):
            pass  # its start time has to do
        if not self._process.is_running():
            self.close()
            raise LaunchError(f"process {pid} has ended, and another one has its number")

    def __enter__(self) -> Target:
        """Give it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the descriptor."""
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def is_there(self) -> bool:
        """Return whether it has not ended."""
        if self._descriptor >= 0:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            return not poll.poll(0)
        with contextlib.suppress(psutil.NoSuchProcess):
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        return False

    def check(self) -> None:
        """See to it that its number still means it.

        Raises:
            LaunchError: It has ended.
        """
        if not self.is_there():
            raise LaunchError(f"process {self.pid} has ended; nothing was changed")
