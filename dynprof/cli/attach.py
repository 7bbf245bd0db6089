"""``dynprof attach`` and ``dynprof detach``: reach a process that nobody has prepared."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import psutil
import typer

from dynprof.cli.config_directory import health
from dynprof.cli.numbers import at_least
from dynprof.cli.options import StepOn, check_step_on
from dynprof.cli.outcome import NOT_SERVED, NOT_WATCHED, fail, say
from dynprof.errors import LaunchError
from dynprof.launch.attaching import Answer, reach
from dynprof.launch.candidates import Candidate, candidates, starts_ranks
from dynprof.launch.stopped_thread import DoesNotStopError
from dynprof.launch.watched_processes import watched_process

TIMEOUT_S = 30.0
FIRST_STEP_S = 5.0
_Pid = Annotated[
    int | None,
    typer.Argument(
        help="The id of the process.", show_default=False, metavar="PID", parser=at_least(1)
    ),
]
_All = Annotated[
    str | None,
    typer.Option(
        "--all",
        metavar="NAME",
        help="All ranks of a job, by the script or module that they run, or by their title; * "
        "stands for any text. A path tells jobs in different directories apart.",
        show_default=False,
    ),
]
_Timeout = Annotated[
    float,
    typer.Option(
        parser=at_least(0.1), metavar="S", help="Give up where it runs no Python for so long."
    ),
]


def attach(
    pid: _Pid = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="DIR",
            help="The directory to watch, of its user; else prof_config where the process works.",
            show_default=False,
        ),
    ] = None,
    step_on: StepOn = None,
    every: _All = None,
    timeout: _Timeout = TIMEOUT_S,
) -> None:
    """Have a running process watch a config, though its script knows nothing of dynprof.

    Its main thread is stopped for some milliseconds; dynprof is loaded on a thread beside it, from
    here where the job has none of its own. Steps end with those of its optimizer, unless --step-on
    names something else.

    Exit code 0: it watches; 1: --step-on is nothing that could end steps; 3: there is no such
    process; 4: it cannot be reached, or watches already.

    Example: dynprof attach 12345 --config prof_config
    """
    check_step_on(step_on)
    targets = _targets(pid, every)
    if pid and (launcher := starts_ranks(pid)):
        text = f"process {pid} is {launcher}, which starts ranks and is none"
        fail(f"{text}; attach those, or all by dynprof attach --all and their script", NOT_SERVED)
    codes = []
    for one, folder in targets:
        directory = (config.absolute() if config else folder / "prof_config").expanduser()
        asked = {"action": "attach", "directory": str(directory), "steps": step_on}
        codes.append(_send(one, asked, timeout))
    raise typer.Exit(max(codes))


def detach(pid: _Pid = None, every: _All = None, timeout: _Timeout = TIMEOUT_S) -> None:
    """Take out of a process what dynprof attach has put in; an open window is saved first.

    Exit code 0: it watches no more; 3: there is no such process; 4: it cannot be reached, or
    watches nothing that dynprof attach has begun.

    Example: dynprof detach 12345
    """
    raise typer.Exit(
        max(_send(one, {"action": "detach"}, timeout) for one, _ in _targets(pid, every))
    )


def _targets(pid: int | None, every: str | None) -> list[tuple[psutil.Process, Path]]:
    """Return the processes that are meant, and where each works."""
    if (pid is None) == (every is None):
        raise typer.BadParameter("give the id of a process, or --all NAME")
    if pid is not None:
        try:
            process = psutil.Process(pid)  # before anything of it is looked at
        except psutil.NoSuchProcess:
            fail(f"there is no process {pid}", NOT_WATCHED)
        folder = Path()
        with contextlib.suppress(OSError):  # what speaks against it is said when it is tried
            folder = Path(f"/proc/{pid}/cwd").resolve(strict=True)
        return [(process, folder)]
    found = candidates(str(every))
    if not found:
        fail(
            f"no process of this user runs {every} in Python; dynprof status --all lists them",
            NOT_WATCHED,
        )
    if len({one.folder for one in found}) > 1 and "/" not in str(every):
        _refuse_ambiguous(str(every), found)
    return [(one.process, one.folder) for one in found]


def _refuse_ambiguous(name: str, found: list[Candidate]) -> NoReturn:
    """Name the processes of several jobs, and say how to tell them apart."""
    for one in found:
        say(f"process {one.pid} works in {one.folder}", err=True)
    paths = {one.path for one in found}
    path = f"the path, as --all {found[0].path}, or " if len(paths) > 1 else ""
    text = f"{name} means processes in different directories; nothing was changed"
    fail(f"{text}. Give {path}one PID at a time", NOT_SERVED)


def _send(process: psutil.Process, asked: dict[str, Any], timeout_s: float) -> int:
    """Have one process do it; say what came of it, and return the exit code for that."""
    pid = process.pid
    try:
        answer = reach(pid, asked, timeout_s, process)
    except DoesNotStopError as error:
        fail(f"{error}; nothing was changed, and no other process is tried", NOT_SERVED)
    except LaunchError as error:
        say(str(error), err=True)
        return NOT_SERVED
    if failed := answer.said.get("failed"):
        done = {"attach": "watched", "detach": "detached"}[asked["action"]]
        say(f"process {pid} cannot be {done}: {failed}", err=True)
        return NOT_SERVED
    return _print_answer(pid, answer)


def _print_answer(pid: int, answer: Answer) -> int:
    took = f" Done after {answer.took_s:.2f} s."
    if answer.stopped_ms is not None:
        stopped = f"Its main thread stood for {answer.stopped_ms:.1f} ms"
        took = f" {stopped}; done after {answer.took_s:.2f} s."
    if directory := answer.said.get("begun"):
        say(f"process {pid} watches {directory}.{took}")
        say(_step_source(pid, answer.said.get("place", "")))
        say(f"dynprof arm {pid} asks for a window, dynprof detach {pid} ends watching", err=True)
        return 0
    if directory := answer.said.get("ended"):
        say(f"process {pid} watches {directory} no more.{took} Left in it: {answer.said['left']}")
        return 0
    directory = answer.said["watched"]
    say(f"process {pid} watches {directory} already; dynprof arm {pid} asks for a window", err=True)
    return NOT_SERVED


def _step_source(pid: int, place: str) -> str:
    """Say where its steps come from, once the first has ended; that is waited for a while.

    Args:
        pid: The process.
        place: Where its main thread was as it was reached; it may hang there.
    """
    deadline_s = time.monotonic() + FIRST_STEP_S
    with contextlib.suppress(psutil.Error):  # it has ended
        while time.monotonic() < deadline_s:
            found = watched_process(pid)
            if found and found.status and health(found.status) != "starting":
                return f"its steps come from {found.status.steps_from}"
            time.sleep(0.1)
    text = f"no step has ended in {FIRST_STEP_S:g} s"
    if place:
        text += f"; as dynprof reached it, its main thread was in {place}"
    return (
        f"{text}. If it hangs, py-spy dump --pid {pid} shows all threads; "
        f"dynprof status {pid} --json says where steps would come from (steps_from)"
    )
