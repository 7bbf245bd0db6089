"""A process of dynprof that runs next to the training, in its own session.

It limits the size of its files, which must not fill the job's disk.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import resource
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from dynprof.runtime.fresh_interpreter import command, environment
from dynprof.runtime.layout import free_disk_mb

if TYPE_CHECKING:
    from pathlib import Path

MAX_OUTPUT_BYTES = 20_000
"""Bytes kept of its standard error; a path in it may be long."""

_unreaped: list[SideProcess] = []
"""Processes not waited for: without a reference, Python warns about open files and children."""
RESERVE_MB = 1024.0
"""MB (10^6 bytes) that stay free on the job's disk, as the default of ``min_free_disk_mb``."""
_MIN_MB = 64.0
"""Smallest limit in MB (10^6 bytes): a process on a full disk must still write its error."""


@dataclass(eq=False)
class SideProcess:
    """A process that is running or has ended."""

    _process: subprocess.Popen[bytes]
    _stderr: BinaryIO

    @classmethod
    def begin(
        cls, module: str, *arguments: str, stdin_text: str = "", place: str = ""
    ) -> SideProcess:
        """Start a module of dynprof in a process that outlives this one.

        Args:
            module: Its name.
            arguments: Its arguments, each up to 128 kB; URLs bring their keys along.
            stdin_text: Its standard input.
            place: The path or URL that it writes to, if that is no argument.

        Raises:
            OSError: No process can be started.
        """
        with contextlib.ExitStack() as begun, contextlib.ExitStack() as held:
            words = cast("BinaryIO", held.enter_context(tempfile.TemporaryFile()))
            given = begun.enter_context(_file_of(stdin_text)) if stdin_text else None
            process = subprocess.Popen(
                command(module, *arguments),
                env=environment(*arguments, place),
                stdin=given or subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                start_new_session=True,
            )
            held.pop_all()
        started = cls(process, words)
        _unreaped.append(started)
        return started

    def last_line(self, *, wait: bool = False, most_s: float | None = None) -> str | None:
        """Return the last line of :meth:`output`."""
        said = self.output(wait=wait, most_s=most_s)
        return said and said.rpartition("\n")[2]

    def output(self, *, wait: bool = False, most_s: float | None = None) -> str | None:
        """Return its standard error after its end; None while it is running.

        A job that ignores SIGCHLD gets no exit code. So a successful process reports that there.

        Args:
            wait: Wait for its end.
            most_s: Wait up to this many seconds; then kill it.
        """
        late = False
        try:
            code = self._process.wait(most_s) if wait else self._process.poll()
        except subprocess.TimeoutExpired:
            late = True
            self._process.kill()
            code = self._process.wait()
        if code is None:
            return None
        self._stderr.seek(0)
        said = self._stderr.read()[-MAX_OUTPUT_BYTES:].decode(errors="replace").strip()
        self._stderr.close()
        _unreaped.remove(self)
        if late:
            return f"it did not end within {most_s:g} s"
        return said or f"it exited with code {code}"

    def why_failed(self, last_line: str, *, wait: bool = False) -> str | None:
        """Return why it failed; empty if it did not, None while it is running.

        Args:
            last_line: The last line that a successful process prints.
            wait: Wait for its end.
        """
        said = self.last_line(wait=wait)
        return "" if said == last_line else said

    def detach(self) -> None:
        """Stop tracking the process; it continues to run."""
        self._stderr.close()
        self._process.returncode = 0  # else the interpreter warns that the process still runs


def _file_of(text: str) -> BinaryIO:
    """Return a file in memory, at its start: a disk may be full, and a pipe holds 64 kB."""
    with contextlib.ExitStack() as held:
        file = held.enter_context(open(os.memfd_create("dynprof"), "w+b"))  # noqa: PTH123
        file.write(text.encode())
        file.seek(0)
        held.pop_all()
    return file


@atexit.register
def _detach_all() -> None:
    """Detach all, after sessions have ended: their exit functions are registered later."""
    for started in _unreaped:
        started.detach()


def limit_file_size(folder: Path, reserve_mb: float = RESERVE_MB) -> None:
    """Limit each file of this process to the free space, minus a reserve.

    Args:
        folder: The folder that it writes to.
        reserve_mb: How many MB (10^6 bytes) to leave free.
    """
    most = int(max(_MIN_MB, free_disk_mb(folder) - reserve_mb) * 1e6)
    _, allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    if allowed != resource.RLIM_INFINITY:
        most = min(most, allowed)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def with_size_limit(error: BaseException, text: str) -> str:
    """Return an error's text, with the limit if the file was too large."""
    too_large = isinstance(error, OSError) and error.errno == errno.EFBIG
    if not too_large and os.strerror(errno.EFBIG) not in text:  # DuckDB's error has no errno
        return text
    most_mb = resource.getrlimit(resource.RLIMIT_FSIZE)[0] / 1e6
    return f"{text}; files are limited to {most_mb:,.0f} MB here, to keep space on the job's disk"
