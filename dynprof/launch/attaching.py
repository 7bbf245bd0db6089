"""Runs code in another process: with ``sys.remote_exec`` from Python 3.14 on, else a pending call.

Before 3.14, the main thread is stopped for a moment. During that time it calls
``Py_AddPendingCall``, so that its interpreter runs the code at the next opportunity. No library is
loaded for that: ``dlopen`` allocates, and the thread may be inside an allocation. If the thread
waits in a system call for a while, it is stopped again, to create a thread that runs the code. At
most three pages of memory stay behind.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import mmap
import os
import re
import select
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from dynprof.errors import LaunchError
from dynprof.launch.foreign_process import describe_main_thread, python_functions, why_not_reached
from dynprof.launch.stopped_thread import (
    PTHREAD_BYTES,
    DoesNotStopError,
    StoppedThread,
    read_memory,
    start_thread,
    write_memory,
)

if TYPE_CHECKING:
    from types import TracebackType

INJECTED_CODE = Path(__file__).with_name("injected.py")
REMOTE_EXEC = (3, 14)
"""First version of Python that has ``sys.remote_exec``."""
_STOP_S = 5.0
"""Timeout for the main thread to stop, and for a call in it to return."""
_POLL_S = 0.01
"""Seconds between two looks for the answer."""
_NEW_THREAD_S = 0.5
"""Time for the main thread to run Python before a new thread is tried; doubled on each try."""
_NAME = re.compile(r"[\w.-]+")
SHARED_EXTRAS = ("viztracer",)  # What a window needs in addition to dynprof's requirements.
NOT_SHARED = {"typer"}
"""Requirements of commands and analyses only, which run in this process."""


@dataclass(frozen=True)
class Answer:
    """The answer of a process.

    Attributes:
        said: Its texts, by kind: ``begun``, ``watched``, ``ended`` and ``left``, or ``failed``.
        stopped_ms: How long its main thread was stopped; None if unknown.
        took_s: Time in the process from the start of the code to the answer.
    """

    said: dict[str, Any]
    stopped_ms: float | None
    took_s: float


def reach(
    pid: int, asked: dict[str, Any], timeout_s: float, seen: psutil.Process | None = None
) -> Answer:
    """Run an action in a process and return its answer.

    Args:
        pid: The process.
        asked: The argument of :func:`dynprof.launch.in_target.act`.
        timeout_s: How long to wait. An action that has not begun by then never begins.
        seen: The process when it was chosen; None: the one that has the ID now.

    Raises:
        LaunchError: The process cannot be reached, or did not answer.
    """
    with Target(pid, seen) as target:
        if text := why_not_reached(pid):
            raise LaunchError(text)
        return _reach(target, asked, timeout_s)


def _reach(target: Target, asked: dict[str, Any], timeout_s: float) -> Answer:
    folder = Path(tempfile.mkdtemp(prefix="dynprof-attach-"))  # mkdtemp makes it private
    try:
        (folder / "go").touch()
        told = {**asked, "folder": str(folder), "homes": module_folders(), "by": os.getpid()}
        order = _inject(target, folder, f"{INJECTED_CODE.read_text()}\nstart({told!r})\n")
        try:
            return _await_answer(target.pid, folder, order, timeout_s, asked["action"])
        finally:
            order.discard()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Injection:
    """Code that a process was asked to run.

    Attributes:
        stopped_ms: How long its main thread was stopped; None if unknown.
        where: The thread that should run the code, for messages.
    """

    stopped_ms: float | None = None
    where = "on its main thread"

    def __init__(self, target: Target) -> None:
        self._target = target

    def is_alive(self) -> bool:
        """Return whether the process exists and runs the same program."""
        return self._target.is_alive()

    def try_new_thread(self) -> None:
        """Try a new thread, if possible: the code has not run for a while."""

    def discard(self) -> None:
        """Make sure that the code does nothing from now on, and clean up if possible."""


class _RemoteExec(_Injection):
    """Injection with ``sys.remote_exec``, from Python 3.14 on."""

    def __init__(self, target: Target, folder: Path, text: str) -> None:
        super().__init__(target)
        script = folder / "script.py"
        script.write_text(text)
        script.chmod(0o600)
        target.check()
        try:
            sys.remote_exec(target.pid, str(script))  # type: ignore[attr-defined, unused-ignore]
        except (OSError, RuntimeError) as error:
            raise LaunchError(f"process {target.pid} cannot be reached: {error}") from error


class _PendingCall(_Injection):
    """Injection with a pending call, which runs when the main thread next runs Python."""

    def __init__(self, target: Target, text: str) -> None:
        super().__init__(target)
        pid = target.pid
        self._pid, self._address = pid, 0
        self._functions = python_functions(pid)
        self._content = content = _guarded(text).encode() + b"\0"
        self._size = -(-(len(content) + PTHREAD_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        with StoppedThread(pid, _STOP_S) as thread:
            target.check()  # a traced process keeps its PID
            self._waits_at = thread.waits_at
            self._address = self._allocate(thread)
            write_memory(pid, self._address, content)
            asks = self._functions["Py_AddPendingCall"]
            if thread.call(asks, self._functions["PyRun_SimpleString"], self._address) & 0xFFFFFFFF:
                raise LaunchError(f"process {pid} has too many pending calls")
        self.stopped_ms = thread.stopped_s * 1e3

    def _allocate(self, thread: StoppedThread) -> int:
        """Allocate memory in the process."""
        rights, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = thread.call(self._functions["mmap"], 0, self._size, rights, kind, -1, 0)
        if address > (1 << 64) - mmap.PAGESIZE:
            raise LaunchError(f"process {self._pid} has no memory left")
        return address

    def is_alive(self) -> bool:
        """Return whether the code is still in memory; a process that calls ``exec`` loses it."""
        with contextlib.suppress(OSError):
            if not self._target.is_alive():
                return False
            return read_memory(self._pid, self._address, len(self._content)) == self._content
        return False

    def try_new_thread(self) -> None:
        """Run the code in a new thread, if the main thread has waited at one place."""
        if self.where != _Injection.where:
            return
        with StoppedThread(self._pid, _STOP_S) as thread:
            self._target.check()
            before, self._waits_at = self._waits_at, thread.waits_at
            if before and before == thread.waits_at:
                number = self._address + self._size - PTHREAD_BYTES
                start_thread(self._pid, thread, self._functions, self._address, number)
                self.where = "on a new thread, because another holds the GIL,"
        self.stopped_ms = (self.stopped_ms or 0.0) + thread.stopped_s * 1e3

    def discard(self) -> None:
        """Overwrite the code with an expression that does nothing."""
        if self.is_alive():
            with contextlib.suppress(OSError):  # it has ended
                write_memory(self._pid, self._address, b"0\0")


def _guarded(text: str) -> str:
    """Return code that runs a text safely in the script's ``__main__``.

    The names of ``__main__`` belong to the script: this code assigns none, and uses only
    ``Exception``, after an error. Errors end here, so that the training does not fail. The text is
    not run while Python finalizes, because nothing can be imported then.
    """
    python, within = "__import__('builtins')", {"__name__": "dynprof.launch.injected"}
    run = f"{python}.exec({python}.compile({text!r}, '<dynprof attach>', 'exec'), {within!r})"
    late = "__import__('sys').is_finalizing()"
    return f"try:\n {late} or {run}\nexcept Exception: pass"


def _inject(target: Target, folder: Path, text: str) -> _Injection:
    try:
        if sys.version_info >= REMOTE_EXEC:  # the process runs the same version
            return _RemoteExec(target, folder, text)
        return _PendingCall(target, text)
    except OSError as error:
        text = f"process {target.pid} cannot be reached: {error.strerror}"
        raise LaunchError(text) from error


def _await_answer(
    pid: int, folder: Path, order: _Injection, timeout_s: float, action: str
) -> Answer:
    """Wait for the answer; if the code has not begun in time, make sure that it never does.

    Once begun, attaching may take another ``timeout_s``. Detaching may take as long as it takes to
    save a capture.
    """
    _write_stopped_time(folder, order)
    began_s, patience_s, why = time.monotonic(), _NEW_THREAD_S, ""
    deadline_s = began_s + timeout_s
    while not (folder / "answer").exists():
        if (folder / "unanswered").exists():
            text = f"process {pid} could not write its answer: it has no free descriptor, or the"
            raise LaunchError(f"{text} disk is full; dynprof status shows whether it is watched")
        if not order.is_alive():
            raise LaunchError(f"process {pid} has ended, or runs another program")
        if time.monotonic() > deadline_s:
            _withdraw(pid, folder, f"{order.where} for {timeout_s:g} s{why}")
            if action == "attach" and time.monotonic() > deadline_s + timeout_s:
                text = f"process {pid} was reached, but has not answered for {timeout_s:g} s"
                text += "; dynprof status shows whether it is watched"
                raise LaunchError(f"{text}. {describe_main_thread(pid)}")
        elif time.monotonic() > began_s + patience_s and (folder / "go").exists():
            patience_s *= 2
            why = _try_new_thread(order)
            _write_stopped_time(folder, order)
        time.sleep(_POLL_S)
    said = ast.literal_eval((folder / "answer").read_text())
    return Answer(said, order.stopped_ms, said.pop("took_s"))


def _write_stopped_time(folder: Path, order: _Injection) -> None:
    """Tell the process how long its main thread was stopped."""
    (folder / "stood.part").write_text(json.dumps(order.stopped_ms))
    (folder / "stood.part").rename(folder / "stood")


def _try_new_thread(order: _Injection) -> str:
    """Try a new thread; return why that failed, which leaves the process unharmed."""
    try:
        order.try_new_thread()
    except DoesNotStopError:
        raise
    except (LaunchError, OSError) as error:
        return f", and a new thread failed: {error}"
    return ""


def _withdraw(pid: int, folder: Path, where: str) -> None:
    """Make sure that the code never begins; do nothing if it has begun and will answer.

    Raises:
        LaunchError: The code had not begun.
    """
    with contextlib.suppress(FileNotFoundError):
        (folder / "go").rename(folder / "withdrawn")
        text = f"process {pid} has not run Python {where}; nothing was changed"
        raise LaunchError(f"{text}. To wait longer, use --timeout. {describe_main_thread(pid)}")


@functools.cache
def module_folders() -> dict[str, str]:
    """Return the folder of each top-level module, by its name."""
    found = {"dynprof": str(Path(__file__).parents[2])}
    waiting, seen = ["dynprof", *SHARED_EXTRAS], {"dynprof", *SHARED_EXTRAS, *NOT_SHARED}
    while waiting:
        name = waiting.pop()
        for module in _modules(name):
            if home := _module_folder(module):
                found.setdefault(module, home)
        needed = [one for one in _required(name) if one not in seen]
        seen.update(needed)
        waiting += needed
    return found


def _modules(name: str) -> set[str]:
    """Return the top-level modules of a distribution."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return set()
    code = [file for file in files if file.suffix in (".py", ".so")]
    names = {file.parts[0].partition(".")[0] for file in code}
    return {name for name in names if name.isidentifier()}


def _required(name: str) -> list[str]:
    """Return the distributions that a distribution requires without extras."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    return [
        _normalized(m[0]) for line in lines if "extra ==" not in line and (m := _NAME.match(line))
    ]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _module_folder(module: str) -> str | None:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin)
    return str(place.parents[1] if spec.submodule_search_locations else place.parent)


class Target:
    """A process, identified by a pidfd, which stays valid if the PID is reused.

    Without pidfds (Linux before 5.3, or a container that forbids them), the start time identifies
    the process.

    Args:
        pid: Its PID.
        seen: The process when it was chosen; None: the one that has the PID now.

    Raises:
        LaunchError: There is no such process, or it is not the chosen one.

    Attributes:
        pid: Its PID.
    """

    def __init__(self, pid: int, seen: psutil.Process | None = None) -> None:
        self.pid, self._descriptor = pid, -1
        try:
            self._process = seen or psutil.Process(pid)
            self._descriptor = os.pidfd_open(pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            raise LaunchError(f"there is no process {pid}") from None
        except (OSError, AttributeError):
            pass  # the start time identifies it
        if not self._process.is_running():
            self.close()
            raise LaunchError(f"process {pid} has ended, and another process has its PID")

    def __enter__(self) -> Target:
        """Return the target."""
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

    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        if self._descriptor >= 0:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            return not poll.poll(0)
        with contextlib.suppress(psutil.NoSuchProcess):
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        return False

    def check(self) -> None:
        """Check that the PID still belongs to the process.

        Raises:
            LaunchError: The process has ended.
        """
        if not self.is_alive():
            raise LaunchError(f"process {self.pid} has ended; nothing was changed")
