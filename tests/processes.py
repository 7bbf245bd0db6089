"""Start the processes of tests, and kill each at the end of its test.

Each process has a mark in its environment. Its children inherit the mark, even in another session
or under another parent. At the end of a test, all processes with the test's mark are killed. When
pytest ends, a separate process kills those with pytest's mark. This also works after ``kill -9`` of
pytest.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MARK = "DYNPROF_TEST_FAMILY"
"""The variable with the mark: a path. The marks of child processes are below it."""
ROOT = Path(__file__).parents[1]
DYNPROF = (sys.executable, "-c", "from dynprof.cli.app import app; app()")
"""The beginning of the command line of dynprof's commands."""
_numbers = itertools.count()
_started: list[Process] = []
_older: list[set[int]] = [set()]
"""The ids of all processes at the start of the current test, last: none of them is of its family.

Reading the environments of all processes would take milliseconds at the end of each test.
"""


class Process(subprocess.Popen[str]):
    """A process that a test started. The end of a ``with`` block kills it without waiting.

    Attributes:
        mark: The mark in its environment and in that of its children.
    """

    mark = ""

    def communicate(
        self,
        input: str | None = None,  # noqa: A002 - as Popen has it
        timeout: float | None = None,
    ) -> tuple[str, str]:
        """Wait for its end and return its output; the timeout follows this machine's pace."""
        return super().communicate(input, timeout or patience_s())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the timeout follows this machine's pace."""
        return super().wait(timeout or patience_s())

    def end(self) -> None:
        """Kill the process and its descendants, and close its pipes."""
        self.kill()
        end_family(self.mark)
        self.communicate()

    def __exit__(self, *_: object) -> None:
        self.end()


def start(command: Sequence[str | Path], **settings: Any) -> Process:
    """Start a process, with pipes for its output and errors, as text.

    Args:
        command: Its command line.
        settings: As ``subprocess.Popen`` takes them.
    """
    mark = new_mark()
    env = {**(settings.pop("env", None) or os.environ), MARK: mark}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = Process(command, **{"text": True, **pipes, **settings}, env=env)
    process.mark = mark
    note(process)
    return process


def new_mark() -> str:
    """Return the mark for a process that is about to start."""
    watch_over_this_process()
    return f"{os.environ[MARK]}/{next(_numbers)}"


def note(process: Process) -> None:
    """Register the process to be killed at the end of the test."""
    _started.append(process)


def start_for_all_tests(command: Sequence[str], **settings: Any) -> None:
    """Start a process that lives until pytest ends."""
    watch_over_this_process()
    env = {**os.environ, MARK: own_mark()}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, **settings)
    atexit.register(process.wait)
    atexit.register(process.kill)  # before the watching process does


def run(
    command: Sequence[str | Path], *, patience: float = 1, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, whatever its exit code. Its children end with the test.

    dynprof's commands run in an interpreter that has already loaded them.

    Args:
        command: Its command line.
        patience: The factor for the usual timeout.
        settings: As :func:`start` takes them.
    """
    if tuple(command[:3]) == DYNPROF and _loaded_will_do(command, settings):
        from tests import warm_interpreter

        folder, env = settings.get("cwd") or Path.cwd(), settings.get("env") or os.environ
        arguments = list(map(str, command[3:]))
        needs = warm_interpreter.COMMAND
        together = "stderr" in settings
        return warm_interpreter.run(
            DYNPROF[-1], folder, env, arguments, needs, patience, together=together
        )
    process = start(command, **settings)
    output, errors = process.communicate(timeout=patience * patience_s())
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _loaded_will_do(command: Sequence[str | Path], settings: dict[str, Any]) -> bool:
    """Return whether a process can start in a loaded interpreter.

    The width of a help page cannot be changed there: typer reads it at import.
    """
    env = settings.get("env") or os.environ
    own = [
        {name: text for name, text in each.items() if name.startswith(("PYTHON", "LC_", "LANG"))}
        for each in (env, os.environ)
    ]
    known = settings.get("stderr", subprocess.STDOUT) == subprocess.STDOUT
    known &= settings.keys() <= {"cwd", "env", "stderr"}
    return own[0] == own[1] and "--help" not in command and known


def family(mark: str) -> list[psutil.Process]:
    """Return the other processes with this mark or one below it; with any mark, for "".

    In a test, they are those that started since it began.
    """
    found = []
    for pid in set(psutil.pids()) - _older[-1]:
        with contextlib.suppress(OSError, psutil.Error):  # it has just ended, or is another user's
            borne = _borne_by(pid)
            if borne and f"{borne}/".startswith(f"{mark}/") and pid != os.getpid():
                found.append(psutil.Process(pid))
    return found


def _borne_by(pid: int) -> str:
    """Return the mark of a process; psutil would take three times as long."""
    env = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    return env.partition(f"\0{MARK}=".encode())[2].partition(b"\0")[0].decode()


def end_family(mark: str) -> None:
    """Kill the processes with a mark, and repeat while they start others.

    The processes are not waited for: the caller that started them needs their exit codes.
    """
    deadline_s = time.monotonic() + patience_s()
    while (found := family(mark)) and time.monotonic() < deadline_s:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()


@contextlib.contextmanager
def ending_with_the_test() -> Iterator[None]:
    """Kill at the end the processes that started in this block, here or in children."""
    watch_over_this_process()
    above, known = os.environ[MARK], len(_started)
    os.environ[MARK] = mark = f"{above}/{next(_numbers)}"
    _older.append(set(psutil.pids()))
    try:
        yield
    finally:
        os.environ[MARK] = above
        end_family(mark)
        while len(_started) > known:
            last = _started.pop()
            if last.poll() is None:
                last.end()
            else:
                last.communicate()
        _older.pop()


@functools.cache
def watch_over_this_process() -> subprocess.Popen[bytes]:
    """Kill this process's descendants when it is gone; let them receive Ctrl-C.

    A background process ignores Ctrl-C, and its children inherit that. Jobs that tests interrupt
    must not ignore it.
    """
    os.environ[MARK] = mark = own_mark()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = subprocess.Popen(
        [sys.executable, "-m", __name__, str(os.getpid()), mark],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it outlives Ctrl-C
    )
    watcher.returncode = 0  # avoids a ResourceWarning: the watcher outlives this process
    return watcher


@functools.cache
def own_mark() -> str:
    """Return the mark of all processes that this process starts before any test begins."""
    return f"{os.environ.get(MARK, '')}/{os.getpid()}"


def _outlive(pid: int, mark: str) -> None:
    """Wait for the end of a process, then kill its family."""
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    end_family(mark)


if __name__ == "__main__":
    _outlive(int(sys.argv[1]), sys.argv[2])
