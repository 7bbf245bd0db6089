"""Every process of the tests is started here, and dies with its test, whatever becomes of that.

Each is given a mark in its environment, which its children inherit, in whatever session they are
and whoever their parent becomes. Whatever bears the mark of a test is killed at its end; what bears
that of pytest is killed once pytest is gone, by a process that waits for nothing else, because
nobody can tidy up after his own ``kill -9``.
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
"""The variable with the mark: a path, in which whatever a process starts stands below it."""
ROOT = Path(__file__).parents[1]
DYNPROF = (sys.executable, "-c", "from dynprof.cli import app; app()")
"""The beginning of the command line of dynprof's commands."""
_numbers = itertools.count()
_started: list[Process] = []


class Process(subprocess.Popen[str]):
    """A process that a test started; at the end of a ``with`` block it is killed, not waited for.

    Attributes:
        mark: What it and its children bear in their environment.
    """

    mark = ""

    def communicate(
        self,
        input: str | None = None,  # noqa: A002 - as Popen has it
        timeout: float | None = None,
    ) -> tuple[str, str]:
        """Wait for its end and return what it said, as long as the pace of this machine allows."""
        return super().communicate(input, timeout or patience_s())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, as long as the pace of this machine allows."""
        return super().wait(timeout or patience_s())

    def end(self) -> None:
        """Kill it and all that came of it, and close its pipes."""
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
    """Return the mark of a process that is about to be started, by this one or for it."""
    watch_over_this_process()
    return f"{os.environ[MARK]}/{next(_numbers)}"


def note(process: Process) -> None:
    """Have it end with the test."""
    _started.append(process)


def start_for_all_tests(command: Sequence[str], **settings: Any) -> None:
    """Start a process that outlives the test which needs it first, but not pytest."""
    watch_over_this_process()
    env = {**os.environ, MARK: own_mark()}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, **settings)
    atexit.register(process.wait)
    atexit.register(process.kill)  # before that


def run(
    command: Sequence[str | Path], *, patience: float = 1, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, whatever its exit code; what it leaves running ends with the test.

    A command of dynprof is run by an interpreter that has loaded it already.

    Args:
        command: Its command line.
        patience: How many times as long as usual it may take.
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
    """Tell whether a process asks for nothing that its interpreter has to know as it starts.

    How wide a page of help is, typer asks as it is imported.
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
    """Return the other processes that bear a mark, or one below it; all that bear any, for ""."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):  # it has just ended, or is another user's
            borne = _borne_by(pid)
            if borne and f"{borne}/".startswith(f"{mark}/") and pid != os.getpid():
                found.append(psutil.Process(pid))
    return found


def _borne_by(pid: int) -> str:
    """Return the mark of a process: for all of them psutil takes three times as long."""
    env = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    return env.partition(f"\0{MARK}=".encode())[2].partition(b"\0")[0].decode()


def end_family(mark: str) -> None:
    """Kill the processes that bear a mark, until there are none: they may be starting others.

    They are not waited for: whoever started them does that, and wants to know how they ended.
    """
    deadline_s = time.monotonic() + patience_s()
    while (found := family(mark)) and time.monotonic() < deadline_s:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()


@contextlib.contextmanager
def ending_with_the_test() -> Iterator[None]:
    """Kill at the end what was started meanwhile, here or by what runs in this process."""
    watch_over_this_process()
    above, known = os.environ[MARK], len(_started)
    os.environ[MARK] = mark = f"{above}/{next(_numbers)}"
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


@functools.cache
def watch_over_this_process() -> subprocess.Popen[bytes]:
    """Have all that this process starts killed once it is gone, and killable by Ctrl-C before.

    Whoever starts tests in the background has them ignore Ctrl-C, and what they start inherits
    that: jobs that are to be interrupted would not be.
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
    watcher.returncode = 0  # nobody waits for it: it outlives this process
    return watcher


@functools.cache
def own_mark() -> str:
    """Return the mark of all that this process starts, as it is before any test has begun."""
    return f"{os.environ.get(MARK, '')}/{os.getpid()}"


def _outlive(pid: int, mark: str) -> None:
    """Wait for the end of a process, then kill its family."""
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    end_family(mark)


if __name__ == "__main__":
    _outlive(int(sys.argv[1]), sys.argv[2])
