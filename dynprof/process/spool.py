"""Lines that processes of one machine leave for the one of them that takes them.

They lie in a file that nobody but its user may touch, which is locked for the moment in which one
writes or takes. No descriptor stays open: one that a script closes by its number would be another
file's by then. Nobody waits for long: where it cannot be had, the caller does without.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from dynprof.files.regular import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S, LOOK_AGAIN_S = 0.02, 0.001
"""So long it is waited for the lock, at most and in between."""
MOST_BYTES = 1 << 20
"""Of lines that nobody has taken."""


class Spool:
    """Such a file.

    Args:
        path: Where it lies; None where there is no place for it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def put(self, line: str) -> bool:
        """Leave a line; return whether it lies there."""
        raw = b"\n" + line.encode() + b"\n"  # before it: another's may be cut off, on a full disk
        try:
            with self._locked(os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
                fits = file is not None and os.fstat(file).st_size + len(raw) <= MOST_BYTES
                return fits and os.write(file, raw) == len(raw)  # type: ignore[arg-type]
        except OSError:
            return False

    def take(self) -> list[str]:
        """Return the lines that lie there, which none does any more then."""
        try:
            if self._path is None or not self._path.stat().st_size:
                return []
            with self._locked(os.O_RDWR) as file:
                if file is None:
                    return []
                raw = os.read(file, MOST_BYTES)
                os.ftruncate(file, 0)
        except OSError:
            return []
        # Of bytes: a text may have U+2028 and the like in it, which end its lines.
        return [line.decode(errors="replace") for line in raw.split(b"\n") if line]

    def remove(self) -> None:
        """Remove the file, and what lies in it."""
        if self._path:
            with contextlib.suppress(OSError):
                self._path.unlink()

    @contextlib.contextmanager
    def _locked(self, flags: int) -> Iterator[int | None]:
        """Open the file for this process alone; None where another has it for too long.

        Raises:
            OSError: It cannot be opened.
        """
        if self._path is None:
            yield None
            return
        descriptor, _ = descriptor_of(self._path, flags, 0o600)
        try:
            locked = _lock(descriptor)
            yield descriptor if locked else None
        finally:
            # Said aloud: a child that was forked meanwhile holds the same lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    until_s = time.monotonic() + PATIENCE_S
    while not (locked := _locks_now(descriptor)) and time.monotonic() < until_s:
        time.sleep(LOOK_AGAIN_S)
    return locked


def _locks_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
