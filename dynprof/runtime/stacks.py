"""Python stacks of all threads: of this process, and of another one through py-spy.

py-spy runs with ``--nonblocking``: it reads the memory of the process, and neither stops it nor
runs code in it. So a process that holds the GIL can be read, and a stopped one stays as it is.
Stacks have functions, files and lines, and never the values of variables.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import traceback
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from dynprof.errors import CaptureError, describe
from dynprof.runtime.fresh_interpreter import environment
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

Frame = TypeVar("Frame")
MAX_THREADS = 200
"""Threads of a process whose stacks are kept: some data loaders start hundreds."""
MAX_FRAMES = 100
"""Frames of a thread that are kept: a recursion may have thousands."""
MAX_TEXT = 300
"""Characters kept of a file and of a name: generated code may have names of any length."""
PY_SPY_S = 10.0
"""Timeout of py-spy in seconds; it takes 0.1 s for a process that has loaded torch."""
PY_SPY_TRIES = 3
"""A process that runs while py-spy reads it may change in between, which is an error of py-spy."""
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
"""The setting of Yama, Linux's security module that restricts ptrace."""
MAIN = "MainThread"

_OUTERMOST = 30  # Of the kept frames: they tell which part of the script is running.
_FRAME = re.compile(r"(?P<name>.*) \((?P<file>.*):(?P<line>\d+)\)", re.DOTALL)
_LIBRARY = re.compile(r"(^|[\\/])((site|dist)-packages|lib(64)?[\\/]python3[.\dt]*)[\\/]|^<frozen")
_CHECKED_OUT = re.compile(
    r"(?:^|[\\/])(?=(?P<checkout>[^\\/]+)[\\/](?:(?:src|python)[\\/])?(?P<package>vllm|vllm_ascend|sglang"
    r"|xfuser|transformers|diffusers|accelerate|deepspeed|megatron|lightning|pytorch_lightning"
    r"|lightning_fabric|nemo|verl|torchtitan|trl|peft)[\\/])"
)
"""A framework's package in the folder of a checkout, such as ``/workspace/vllm/vllm/``."""
_NAMED_OTHERWISE = {"xdit": "xfuser"}
"""Checkouts whose name does not contain that of the package."""
_OWN = f"{Path(__file__).parents[1]}/"
_RESTRICTED = {
    "1": "only its parent may; run this as root, or set sysctl kernel.yama.ptrace_scope=0 once",
    "2": "only root may",
    "3": "no process may until the machine reboots",
}
"""Why ptrace is forbidden, by the value in :data:`YAMA`."""


@dataclass(frozen=True)
class ThreadStack:
    """The stack of one thread.

    Attributes:
        name: Its name; empty if unknown.
        frames: ``function (file:line)``, the innermost first.
        holds_gil: Whether it holds the GIL, where py-spy has seen it.
        is_training: Whether it ends the training's steps, where that is known.
    """

    name: str
    frames: tuple[str, ...]
    holds_gil: bool = False
    is_training: bool = False


@dataclass(frozen=True)
class ProcessStacks:
    """The stacks of one process.

    Attributes:
        pid: Its PID.
        name: The name of its program or main thread, without arguments.
        state: Its state: ``running``, ``sleeping``, ``stopped``; empty if unknown.
        threads: The stacks of its threads, the training's thread and the main thread first.
        left_out: Number of further threads.
        why_none: Why there are no stacks; empty if there are.
    """

    pid: int
    name: str = ""
    state: str = ""
    threads: tuple[ThreadStack, ...] = ()
    left_out: int = 0
    why_none: str = ""

    @property
    def training(self) -> ThreadStack | None:
        """The thread that ends the steps; the main thread where that is not known."""
        main = next((one for one in self.threads if one.name == MAIN), None)
        return next((one for one in self.threads if one.is_training), main)


def stacks_here(pid: int, training: int | None = None) -> ProcessStacks:
    """Return the stacks of this process.

    No source file is read for it: its disk may be what the process waits for.

    Args:
        pid: The PID of this process.
        training: Identifier of the thread that ends the steps; None if unknown.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    names[main] = MAIN
    found = sys._current_frames()
    order = sorted(
        found, key=lambda ident: (ident != training, ident != main, names.get(ident, ""))
    )
    threads = tuple(
        ThreadStack(
            names.get(one, "")[:MAX_TEXT], _frames_of(found[one]), is_training=one == training
        )
        for one in order[:MAX_THREADS]
    )
    return ProcessStacks(pid, state="running", threads=threads, left_out=len(order[MAX_THREADS:]))


def stacks_of(pid: int) -> ProcessStacks:
    """Return the stacks of another process; if it cannot be read, its state and why."""
    name = state = ""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            name, state = process.name()[:MAX_TEXT], process.status()
        threads = _by_py_spy(pid)
    except psutil.NoSuchProcess:
        return ProcessStacks(pid, name, why_none="it has ended")
    except (CaptureError, psutil.Error) as error:
        return ProcessStacks(pid, name, state, why_none=describe(error))
    kept, left_out = tuple(threads[:MAX_THREADS]), len(threads[MAX_THREADS:])
    return ProcessStacks(pid, name, state, kept, left_out)


def py_spy() -> str | None:
    """Return the path of py-spy: next to this Python's own programs, or on ``PATH``."""
    own = shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    return own or shutil.which("py-spy")


def why_ptrace_forbidden() -> str:
    """Return why the system forbids ptrace."""
    scope = YAMA.read_text().strip() if YAMA.exists() else "0"
    return _RESTRICTED.get(
        scope, "the system forbids it (for example in a container without SYS_PTRACE)"
    )


def place_of(thread: int) -> str:
    """Return the place of a thread of this process, as :func:`place_in` does.

    Args:
        thread: Its ``threading.get_ident()``.
    """
    return place_in(_frames_of(sys._current_frames().get(thread)))


def uncaught_exception() -> str:
    """Return type and place of the exception that ends the script; empty if there is none.

    The interpreter keeps it before it calls functions of ``atexit``. Its message is left out, as it
    may have secrets. An interactive session keeps that of an earlier input, and C code may keep one
    of its callbacks: neither ends the script. Ctrl-C is no failure.
    """
    error, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
    if error is None or trace is None or hasattr(sys, "ps1"):
        return ""
    outermost = trace.tb_frame
    is_of_script = outermost.f_code.co_name == "<module>" or _is_runpy(outermost)
    if not is_of_script or isinstance(error, KeyboardInterrupt):
        return ""
    found = [(one.f_code, line) for one, line in traceback.walk_tb(trace)]
    frames = [_text(code.co_qualname, code.co_filename, line) for code, line in reversed(found)]
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"[:MAX_TEXT] + f" at {place_in(frames)}"


def _is_runpy(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "runpy"


def calling_place() -> str:
    """Return the place on this thread that has called dynprof, as :func:`place_in` does."""
    frame = inspect.currentframe()
    while frame and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return place_in(_frames_of(frame))


def place_in(frames: Sequence[str]) -> str:
    """Return the innermost function of a stack, and the script's function that called it.

    Returns:
        ``wait (threading.py:324), called at /data/train.py:12 in load``, or
        ``/data/train.py:12 in load``; empty if there is no frame.
    """
    found = [match for match in map(_FRAME.fullmatch, frames) if match]
    users = [match for match in found if not is_of_a_library(match["file"])]
    if not found:
        return ""
    if users[:1] == found[:1]:
        return _line(found[0])
    name = f"{_short(found[0])} ({Path(found[0]['file']).name}:{found[0]['line']})"
    return f"{name}, called at {_line(users[0])}" if users else name


def _line(match: re.Match[str]) -> str:
    return f"{match['file']}:{match['line']} in {_short(match)}"


def _short(match: re.Match[str]) -> str:
    return match["name"].rpartition(".")[2]


def is_of_a_library(file: str) -> bool:
    """Return whether a source file belongs to Python, a package or dynprof, not to the script.

    A framework counts as a package also where it is a checkout.
    """
    if _LIBRARY.search(file) or file.startswith(_OWN):
        return True
    return any(map(_is_own_checkout, _CHECKED_OUT.finditer(file)))


def _is_own_checkout(found: re.Match[str]) -> bool:
    """Return whether a folder has the name of the package in it, perhaps with more words."""
    checkout, package = found["checkout"].lower().replace("-", "_"), found["package"]
    return package in checkout or _NAMED_OTHERWISE.get(checkout) == package


def _frames_of(innermost: FrameType | None) -> tuple[str, ...]:
    def walk() -> Iterator[FrameType]:
        frame = innermost
        while frame is not None:
            yield frame
            frame = frame.f_back

    return _bounded(
        walk(),
        lambda one: _text(one.f_code.co_qualname, one.f_code.co_filename, one.f_lineno),
    )


def _bounded(frames: Iterator[Frame], text_of: Callable[[Frame], str]) -> tuple[str, ...]:
    """Return the frames of a stack as text, without those in the middle of a deep recursion."""
    inner = list(islice(frames, MAX_FRAMES - _OUTERMOST))
    outer: deque[Frame] = deque(maxlen=_OUTERMOST)
    count = 0
    for count, frame in enumerate(frames, 1):  # noqa: B007 - the last one counts
        outer.append(frame)
    cut = count - len(outer)
    remark = [f"... {counted(cut, 'frame is', 'frames are')} left out ..."] if cut else []
    return (*map(text_of, inner), *remark, *map(text_of, outer))


def _text(name: str, file: str, line: int | None) -> str:
    text = f"{name[:MAX_TEXT]} ({file[-MAX_TEXT:]}:{line or 0})"
    return text.encode("utf-8", "replace").decode()  # a path may have other bytes


def _by_py_spy(pid: int) -> list[ThreadStack]:
    """Return the stacks of another process.

    Raises:
        CaptureError: py-spy is not installed, or cannot read the process.
    """
    if (program := py_spy()) is None:
        raise CaptureError("py-spy is not installed; pip install 'dynprof[stacks]' adds it")
    words = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    for _ in range(PY_SPY_TRIES):
        try:
            done = subprocess.run(
                words, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
                timeout=PY_SPY_S, check=False,
            )  # fmt: skip
            threads = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            raise CaptureError(f"py-spy did not end within {PY_SPY_S:g} s") from None
        except OSError as error:
            raise CaptureError(f"py-spy cannot run: {describe(error)}") from None
        except ValueError:
            why = _why_failed(done.stderr.decode(errors="replace"))
            continue
        return _threads(threads)
    raise CaptureError(why)


def _threads(told: list[dict[str, Any]]) -> list[ThreadStack]:
    """Return the threads in the output of py-spy, the main thread first."""
    try:
        found = [_thread(one) for one in told]
    except (KeyError, TypeError):
        raise CaptureError("this version of py-spy has another output") from None
    return sorted(found, key=lambda one: (one.name != MAIN, one.name))


def _thread(told: dict[str, Any]) -> ThreadStack:
    name = str(told["thread_name"] or "")[:MAX_TEXT]
    frames = _bounded(
        iter(told["frames"]), lambda one: _text(one["name"], one["filename"], one["line"])
    )
    return ThreadStack(name, frames, bool(told["owns_gil"]))


def _why_failed(said: str) -> str:
    """Return the reason in the output of py-spy, without its own stack."""
    if "os error 13" in said or "ermission" in said:
        return f"py-spy may not read it: {why_ptrace_forbidden()}"
    lines = [line.strip() for line in said.partition("Stack backtrace")[0].splitlines()]
    known = [line for line in lines if line and line != "Caused by:"]
    return f"py-spy cannot read it: {'; '.join(known[:3])[:MAX_TEXT] or 'no output'}"
