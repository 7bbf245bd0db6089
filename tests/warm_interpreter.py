"""Scripts and commands of dynprof in forks of interpreters that have loaded what these need.

To load it takes most of the time of a short one. What needs an interpreter of its own (another
command line, threads before the fork, imports that are to be seen) starts one.
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
"""What an interpreter loads for scripts of the two kinds, and for a command.

The compiler too: a profiler of torch's, or an optimizer, loads it where a script makes one. And
what torchrun is.
"""
AT_START = "GLIBC_TUNABLES", "LD_LIBRARY_PATH", "MALLOC_", "PYTHONMALLOC"
"""The beginnings of variables that an interpreter is started with, where a script has them."""

_OF_TRITON = re.compile(r"nanobind: leaked .*?/refleaks\.html", re.DOTALL)
"""What Triton, which the compiler loads, says as an interpreter ends: with torch 2.15, say."""


class ForkedScript(processes.Process):
    """A script in a fork of that interpreter: a ``Popen`` of somebody else's child.

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
        """Kill it and all that came of it, and close its pipes."""
        self.kill()
        while forked := self._forked():  # one of them may be forking another
            for process in forked:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        super().end()

    def _forked(self) -> list[psutil.Process]:
        """Return what it has forked, which has the mark of its interpreter, but its session."""
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
        text: Of the script.
        folder: Where it runs.
        env: Its environment; what Python itself reads of that is as it is here, but for how memory
            is allocated and where libraries are.
        arguments: What stands in ``sys.argv`` behind its name.
        needs: What is loaded before it runs.
        patience: How many times as long as usual it may take.
        unloads: Whether it takes all apart as it ends, as an interpreter does: torch's libraries
            take a quarter of a second for that. Else it ends behind what ``atexit`` knows.
        together: Whether its errors are part of what it prints, as in a terminal.

    Raises:
        subprocess.TimeoutExpired: It took too long, and was killed.
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
        path: Of the script.
        env: Its environment.
        warned: What is to be done with warnings, each as ``-W`` takes it.
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
    """Have a script run that ends with the test, and writes to two files."""
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
    """Have torchrun, in this process, fork its workers from a warm interpreter."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    def begin(_: object, command: Sequence[str], env: dict[str, str]) -> ForkedScript:
        path = Path(command[-1]).resolve()
        asked: dict[str, Any] = {"text": path.read_text(), "path": str(path), "env": env}
        asked |= {"folder": str(path.parent), "arguments": [], "warnings": [], "unloads": False}
        return _begin(asked, [sys.stdout, sys.stderr], [], WITH_TORCH)

    SubprocessHandler._popen = begin


@functools.cache
def _interpreter(needs: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> socket.socket:
    """Return the connection to one; this process asks for each of them once."""
    return forkserver.connect(needs, dict(env))
