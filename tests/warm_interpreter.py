"""Interpreters that have loaded what a script with torch, or a command of dynprof, needs.

They fork for each: to load it takes most of the time of a short one. What needs an interpreter of
its own (tunables of the allocator, another command line, threads before the fork, imports that are
to be seen) starts one.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from typing import IO, TYPE_CHECKING, Any

import psutil

from tests import processes
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_MOST_BYTES = 1 << 20
SCRIPT = "torch", "torch._dynamo", "dynprof.session.startup"
COMMAND = "dynprof.cli", "dynprof.analysis.runs.newest", "dynprof.analysis.runs.window_report"
"""What an interpreter loads for each of the two.

The compiler too: a profiler of torch's, or an optimizer, loads it where a script makes one.
"""


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
        """Return what it has forked, which has its interpreter's mark and its session."""
        found = []
        for process in processes.family(processes.own_mark()):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(process.pid) == self.pid:
                    found.append(process)
        return found


def run(
    text: str,
    folder: Path,
    env: Mapping[str, str],
    arguments: Sequence[str] = (),
    needs: tuple[str, ...] = SCRIPT,
    patience: float = 1,
    *,
    unloads: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, as ``python -c`` would, whatever its exit code.

    Args:
        text: Of the script.
        folder: Where it runs.
        env: Its environment; what Python itself reads of that is as it is here.
        arguments: What stands in ``sys.argv`` behind its name.
        needs: What is loaded before it runs.
        patience: How many times as long as usual it may take.
        unloads: Whether it takes all apart as it ends, as an interpreter does: torch's libraries
            take a quarter of a second for that. Else it ends behind what ``atexit`` knows.

    Raises:
        subprocess.TimeoutExpired: It took too long, and was killed.
    """
    asked: dict[str, Any] = {"text": text, "path": "-c", "folder": str(folder), "env": dict(env)}
    asked |= {"arguments": list(arguments), "unloads": unloads, "warnings": []}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        script = _fork(asked, [output, errors], [], needs)
        try:
            code = script.wait(patience * patience_s())
        except BaseException:
            script.end()
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess([text], code, output.read(), errors.read())


def start(path: Path, env: Mapping[str, str], *warned: str, unloads: bool = False) -> ForkedScript:
    """Start the script of a file in its folder, as ``python path`` would, with pipes.

    Args:
        path: Of the script.
        env: Its environment.
        warned: What is to be done with warnings, each as ``-W`` takes it.
        unloads: As :func:`run` takes it.
    """
    asked: dict[str, Any] = {"text": path.read_text(), "path": str(path), "arguments": []}
    asked |= {"folder": str(path.parent), "unloads": unloads}
    read, written = zip(*(os.pipe() for _ in range(2)), strict=True)
    pipes = [os.fdopen(end) for end in read]
    files = [os.fdopen(end, "w") for end in written]
    try:
        return _fork({**asked, "env": dict(env), "warnings": warned}, files, pipes, SCRIPT)
    finally:
        for file in files:
            file.close()


def _fork(
    asked: dict[str, Any],
    files: Sequence[IO[str]],
    pipes: Sequence[IO[str]],
    needs: tuple[str, ...],
) -> ForkedScript:
    """Have a script run, which writes to two files."""
    asked["env"][processes.MARK] = mark = processes.new_mark()
    connection = _interpreter(needs)
    ended, told = os.pipe()
    fds = [told, *(file.fileno() for file in files)]
    socket.send_fds(connection, [json.dumps(asked).encode()], fds)
    os.close(told)
    script = ForkedScript(json.loads(connection.recv(_MOST_BYTES)), ended, pipes)
    script.mark = mark
    processes.note(script)
    return script


@functools.cache
def _interpreter(needs: tuple[str, ...]) -> socket.socket:
    """Start an interpreter; it ends once nobody has the other end of its socket any more."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
    with there:
        command = [sys.executable, "-m", __name__, str(there.fileno()), *needs]
        processes.start_for_all_tests(command, pass_fds=[there.fileno()])
    atexit.register(here.close)
    return here


def _script(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each script that is asked for; return it in the child, and None at the end."""
    running: dict[int, tuple[int, int]] = {}  # by what can be read at its end; whom to tell
    while True:
        (ready, *_), *_ = select.select([*running, connection.fileno()], [], [])
        if ready in running:
            pid, told = running.pop(ready)
            os.write(told, b"%d" % os.waitpid(pid, 0)[1])
            _close(told, ready)
            continue
        asked, files, *_ = socket.recv_fds(connection, _MOST_BYTES, 3)
        if not asked:
            return None
        told, *of_script = files
        if (pid := os.fork()) == 0:
            _close(connection.detach(), told, *running, *(other for _, other in running.values()))
            return _as_its_own(json.loads(asked), of_script)
        _close(*of_script)
        running[os.pidfd_open(pid)] = pid, told
        connection.send(b"%d" % pid)


def _close(*files: int) -> None:
    for file in files:
        os.close(file)


def _as_its_own(script: dict[str, Any], files: list[int]) -> dict[str, Any]:
    """Be what an interpreter of its own would be, but for what it has loaded."""
    os.setsid()
    for place, file in enumerate(files, start=1):
        os.dup2(file, place)
        os.close(file)
    os.chdir(script["folder"])
    os.environ.clear()
    os.environ.update(script["env"])
    sys.argv, sys.path[0] = [script["path"], *script["arguments"]], ""
    for each in script["warnings"]:
        sys.warnoptions.append(each)
        action, _, category = each.partition("::")
        warnings.filterwarnings(action, category=getattr(builtins, category))
    return script


def _main(socket_fd: str, *needs: str) -> None:
    for name in needs:
        importlib.import_module(name)
    gc.freeze()  # else each fork looks through all of that, and copies it, as it ends
    script = _script(socket.socket(fileno=int(socket_fd)))
    if script is None:
        return
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if script["path"] != "-c":
        main.__file__, sys.path[0] = script["path"], script["folder"]
    code = compile(script["text"], main.__dict__.get("__file__", "<string>"), "exec")
    if script["unloads"]:
        exec(code, vars(main))  # noqa: S102
    else:
        _end_without_unloading(lambda: exec(code, vars(main)))  # noqa: S102


def _end_without_unloading(script: Callable[[], None]) -> None:
    """Run a script and end as it does, behind its threads and what ``atexit`` knows."""
    code = 0
    try:
        script()
    except SystemExit as error:
        told = error.code if error.code is not None else 0
        code = told if isinstance(told, int) else 1
        if code != told:
            print(told, file=sys.stderr)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _main(*sys.argv[1:])
