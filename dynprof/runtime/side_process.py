"""A process of dynprof's own beside the training: begun apart, asked for its end, or let go."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from typing import BinaryIO, cast

from dynprof.runtime.fresh_interpreter import command, environment

MAX_OUTPUT_BYTES = 20_000
"""Bytes kept of what it says; a path in it may be long."""

_unreaped: list[SideProcess] = []
"""Those whose end nobody has seen: kept until this process's, or Python warns of what they hold."""


@dataclass(eq=False)
class SideProcess:
    """One that is running, or has ended."""

    _process: subprocess.Popen[bytes]
    _stderr: BinaryIO

    @classmethod
    def begin(
        cls, module: str, *arguments: str, stdin_text: str = "", place: str = ""
    ) -> SideProcess:
        """Start a module of dynprof's; it goes on when this process ends.

        Args:
            module: Its name.
            arguments: Its arguments, of 128 kB at most each; it gets the keys for URLs among them.
            stdin_text: What it reads on its standard input.
            place: The path or URL that it writes to, where that is no argument.

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
        """Return what it said on its standard error; None while it is running.

        A job that ignores SIGCHLD is told no exit code, so one that succeeds says so there.

        Args:
            wait: Wait for its end.
            most_s: For so many seconds; then it is killed.
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
            return f"it was not done after {most_s:g} s"
        return said or f"it ended with code {code}"

    def why_failed(self, last_line: str, *, wait: bool = False) -> str | None:
        """Return why it failed, nothing where it did not, None while it is running.

        Args:
            last_line: What one that succeeds says last.
            wait: Wait for its end.
        """
        said = self.last_line(wait=wait)
        return "" if said == last_line else said

    def detach(self) -> None:
        """Ask for its end no more; it goes on."""
        self._stderr.close()
        self._process.returncode = 0  # else the interpreter warns that it runs


def _file_of(text: str) -> BinaryIO:
    """Return a file in memory, at its beginning: a disk may be full, and a pipe takes 64 kB."""
    with contextlib.ExitStack() as held:
        file = held.enter_context(open(os.memfd_create("dynprof"), "w+b"))  # noqa: PTH123
        file.write(text.encode())
        file.seek(0)
        held.pop_all()
    return file


@atexit.register
def _detach_all() -> None:
    """Come after the ends of sessions, which are registered later."""
    for started in _unreaped:
        started.detach()
