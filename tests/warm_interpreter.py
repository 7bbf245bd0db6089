"""Scripts and dynprof commands in forks of interpreters with loaded modules.

Loading takes most of the time of a short script. A script gets its own interpreter if it needs
another command line, threads before the fork, or visible imports.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

from tests import forkserver, processes
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WITHOUT_TORCH = ("dynprof.session.startup",)
WITH_TORCH = "torch", "torch._dynamo", "torch.distributed.run", *WITHOUT_TORCH
COMMAND = (
    *(f"dynprof.cli.{name}" for name in ("arm", "log", "request_follower", "status")),
    "dynprof.analysis.runs.recorded_window",
    "dynprof.analysis.runs.window_report",
)
"""The modules that an interpreter loads for the two kinds of scripts, and for a command.

The compiler is among them because torch's profilers and optimizers load it. So is torchrun.
"""
AT_START = "GLIBC_TUNABLES", "LD_LIBRARY_PATH", "MALLOC_", "PYTHONMALLOC"
"""Prefixes of variables that take effect only at the start of an interpreter."""

_OF_TRITON = re.compile(r"nanobind: leaked .*?/refleaks\.html", re.DOTALL)
"""What Triton prints as an interpreter ends, for example with torch 2.15."""


class ForkedScript(processes.Process):
    """A script in a fork of that interpreter: a ``Popen`` of another process's child.

    Args:
        pid: Its process, which has a session of its own.
        ended: Can be read once it has ended, and gives its wait status.
        pipes: What it prints, and its errors, where those are pipes.
    """

    def __init__(self, pid: int, ended: int, pipes: Sequence[IO[str]]) -> None:
        self.args, self.pid, self._ended = "the script", pid, ended
        self.returncode: int | None = None
        self.stdin, (self.stdout, self.stderr) = None, pipes or (None, None)
        self.encoding = self.errors = self._input = None
        self.text_mode = self._child_created = True
        self._communication_started = False
        self._waitpid_lock, self._sigint_wait_secs = threading.Lock(), 0.25

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        with self._waitpid_lock:
            pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._ended], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._ended, 20)
        os.close(self._ended)
        return self.pid, int(status)

    def end(self) -> None:
        """Kill the script and its descendants, and close its pipes."""
        self.kill()
        while forked := self._forked():  # one of them may be forking another process
            for process in forked:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        super().end()

    def _forked(self) -> list[psutil.Process]:
        """Return the processes that it forked: they have its interpreter's mark and its session."""
        found = []
        for process in processes.family(""):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(process.pid) == self.pid:
                    found.append(process)
        return found


def run(
    text: str,
    folder: Path,
    env: Mapping[str, str],
    arguments: Sequence[str] = (),
    needs: tuple[str, ...] = WITH_TORCH,
    patience: float = 1,
    *,
    unloads: bool = True,
    together: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, as ``python -c`` would, whatever its exit code.

    Args:
        text: The script.
        folder: Where it runs.
        env: Its environment; Python itself keeps its variables, except those for memory allocation
            and libraries.
        arguments: The rest of ``sys.argv``, after its name.
        needs: The modules that are loaded before it runs.
        patience: The factor for the usual timeout.
        unloads: Whether it unloads modules as it ends, as an interpreter does. That takes 0.25 s
            with torch. Otherwise it ends after its ``atexit`` functions.
        together: Whether its errors go to its output, as in a terminal.

    Raises:
        subprocess.TimeoutExpired: It timed out and was killed.
    """
    asked: dict[str, Any] = {"text": text, "path": "-c", "folder": str(folder), "env": dict(env)}
    asked |= {"arguments": list(arguments), "unloads": unloads, "warnings": []}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        script = _fork(asked, [output, output if together else errors], [], needs)
        try:
            code = script.wait(patience * patience_s())
        except BaseException:
            script.end()
            raise
        output.seek(0)
        errors.seek(0)
        said = _OF_TRITON.sub("", errors.read())
        return subprocess.CompletedProcess([text], code, output.read(), said)


def start(
    path: Path,
    env: Mapping[str, str],
    *warned: str,
    arguments: Sequence[str] = (),
    needs: tuple[str, ...] = WITH_TORCH,
    unloads: bool = False,
) -> ForkedScript:
    """Start the script of a file in its folder, as ``python path`` would, with pipes.

    Args:
        path: The script.
        env: Its environment.
        warned: Filters of warnings, each in the format of ``-W``.
        arguments: As :func:`run` takes them.
        needs: As :func:`run` takes it.
        unloads: As :func:`run` takes it.
    """
    asked: dict[str, Any] = {"text": path.read_text(), "path": str(path), "unloads": unloads}
    asked |= {"folder": str(path.parent), "arguments": list(arguments)}
    read, written = zip(*(os.pipe() for _ in range(2)), strict=True)
    pipes = [os.fdopen(end) for end in read]
    files = [os.fdopen(end, "w") for end in written]
    try:
        return _fork({**asked, "env": dict(env), "warnings": warned}, files, pipes, needs)
    finally:
        for file in files:
            file.close()


def _fork(
    asked: dict[str, Any],
    files: Sequence[IO[str]],
    pipes: Sequence[IO[str]],
    needs: tuple[str, ...],
) -> ForkedScript:
    """Fork a script that writes to two files; it ends with the test."""
    asked["env"][processes.MARK] = mark = processes.new_mark()
    script = _begin(asked, files, pipes, needs)
    script.mark = mark
    processes.note(script)
    return script


def _begin(
    asked: dict[str, Any],
    files: Sequence[IO[str]],
    pipes: Sequence[IO[str]],
    needs: tuple[str, ...],
) -> ForkedScript:
    own = {name: of for name, of in asked["env"].items() if name.startswith(AT_START)}
    connection = _interpreter(needs, tuple(own.items()))
    ended, told = os.pipe()
    fds = [told, *(file.fileno() for file in files)]
    socket.send_fds(connection, [json.dumps(asked).encode()], fds)
    os.close(told)
    return ForkedScript(json.loads(connection.recv(forkserver.MOST_BYTES)), ended, pipes)


def begin_workers_of_torchrun() -> None:
    """Make torchrun, in this process, fork its workers from a warm interpreter."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    def begin(_: object, command: Sequence[str], env: dict[str, str]) -> ForkedScript:
        path = Path(command[-1]).resolve()
        asked: dict[str, Any] = {"text": path.read_text(), "path": str(path), "env": env}
        asked |= {"folder": str(path.parent), "arguments": [], "warnings": [], "unloads": False}
        return _begin(asked, [sys.stdout, sys.stderr], [], WITH_TORCH)

    SubprocessHandler._popen = begin


@functools.cache
def _interpreter(needs: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> socket.socket:
    """Return the connection to an interpreter; each is requested once."""
    return forkserver.connect(needs, dict(env))
