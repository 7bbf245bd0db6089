"""``dynprof attach`` and ``dynprof detach``: watch a config from a process that already runs."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import psutil
import typer

from dynprof.cli.config_directory import health
from dynprof.cli.numbers import at_least
from dynprof.cli.options import OnEvent, StepOn, check_on_event, check_step_on
from dynprof.cli.outcome import NOT_SERVED, NOT_WATCHED, fail, say
from dynprof.errors import LaunchError
from dynprof.launch.attaching import Answer, reach
from dynprof.launch.processes import Candidate, candidates, starts_ranks, watched_process
from dynprof.launch.stopped_thread import DoesNotStopError

TIMEOUT_S = 30.0
"""Default of ``--timeout``, in seconds."""
FIRST_STEP_S = 5.0
"""How long attach waits for the first step, to print what ends the steps."""
_Pid = Annotated[
    int | None,
    typer.Argument(help="The process ID.", show_default=False, metavar="PID", parser=at_least(1)),
]
_All = Annotated[
    str | None,
    typer.Option(
        "--all",
        metavar="NAME",
        help="All ranks of a job, selected by the script or module that they run, or by their "
        "title; * matches any text. Give a path to select among jobs in several directories.",
        show_default=False,
    ),
]
_Timeout = Annotated[
    float,
    typer.Option(
        parser=at_least(0.1), metavar="S", help="Give up if it runs no Python for S seconds."
    ),
]


def attach(
    pid: _Pid = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="DIR",
            help="The directory to watch, of the process's user; default: prof_config in its "
            "working directory.",
            show_default=False,
        ),
    ] = None,
    step_on: StepOn = None,
    on_event: OnEvent = None,
    every: _All = None,
    timeout: _Timeout = TIMEOUT_S,
) -> None:
    """Make a running process watch a config, without a change to its script.

    Its main thread stops for some milliseconds. Another thread loads dynprof, from this
    installation if the job has none of its own. Steps end with those of its optimizer, unless
    --step-on names another source.

    Exit code 0: it watches. 1: --step-on names no source of steps, or --on-event no program.
    3: there is no such process. 4: it cannot be reached, or watches already.

    Example: dynprof attach 12345 --config prof_config
    """
    check_step_on(step_on)
    command = None if on_event is None else list(check_on_event(on_event))
    targets = _targets(pid, every)
    if pid and (launcher := starts_ranks(pid)):
        text = f"process {pid} is {launcher}, which starts ranks and is not one"
        fail(f"{text}; attach to a rank, or to all with dynprof attach --all SCRIPT", NOT_SERVED)
    codes = []
    for one, folder in targets:
        directory = (config.absolute() if config else folder / "prof_config").expanduser()
        asked: dict[str, Any] = {"action": "attach", "directory": str(directory)}
        asked |= {"steps": step_on, "on_event": command}
        codes.append(_send(one, asked, timeout))
    raise typer.Exit(max(codes))


def detach(pid: _Pid = None, every: _All = None, timeout: _Timeout = TIMEOUT_S) -> None:
    """Undo dynprof attach in a process; an open window is saved first.

    Exit code 0: it no longer watches. 3: there is no such process. 4: it cannot be reached, or
    dynprof attach has not started its session.

    Example: dynprof detach 12345
    """
    raise typer.Exit(
        max(_send(one, {"action": "detach"}, timeout) for one, _ in _targets(pid, every))
    )


def _targets(pid: int | None, every: str | None) -> list[tuple[psutil.Process, Path]]:
    """Return the processes to reach, each with its working directory."""
    if (pid is None) == (every is None):
        raise typer.BadParameter("give the id of a process, or --all NAME")
    if pid is not None:
        try:
            process = psutil.Process(pid)  # first, so that a reused ID is noticed
        except psutil.NoSuchProcess:
            fail(f"there is no process {pid}", NOT_WATCHED)
        folder = Path()
        with contextlib.suppress(OSError):  # reach() reports the reason
            folder = Path(f"/proc/{pid}/cwd").resolve(strict=True)
        return [(process, folder)]
    found = candidates(str(every))
    if not found:
        fail(
            f"no Python process of this user runs {every}; dynprof status --all lists them",
            NOT_WATCHED,
        )
    if len({one.folder for one in found}) > 1 and "/" not in str(every):
        _refuse_ambiguous(str(every), found)
    return [(one.process, one.folder) for one in found]


def _refuse_ambiguous(name: str, found: list[Candidate]) -> NoReturn:
    """Print the processes of several jobs and how to select one job, and exit."""
    for one in found:
        say(f"process {one.pid} works in {one.folder}", err=True)
    paths = {one.path for one in found}
    path = f"a path, such as --all {found[0].path}, or " if len(paths) > 1 else ""
    text = f"{name} matches processes in different directories; nothing was changed"
    fail(f"{text}. Give {path}one PID at a time", NOT_SERVED)


def _send(process: psutil.Process, asked: dict[str, Any], timeout_s: float) -> int:
    """Send an action to one process; print the result and return the exit code."""
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
        stopped = f"Its main thread was stopped for {answer.stopped_ms:.1f} ms"
        took = f" {stopped}; done after {answer.took_s:.2f} s."
    if directory := answer.said.get("begun"):
        say(f"process {pid} watches {directory}.{took}")
        say(_step_source(pid, answer.said.get("place", "")))
        say(f"dynprof arm {pid} requests a window, dynprof detach {pid} stops watching", err=True)
        return 0
    if directory := answer.said.get("ended"):
        say(f"process {pid} no longer watches {directory}.{took} Left in it: {answer.said['left']}")
        return 0
    directory = answer.said["watched"]
    say(f"process {pid} watches {directory} already; dynprof arm {pid} requests a window", err=True)
    return NOT_SERVED


def _step_source(pid: int, place: str) -> str:
    """Return a line that says what ends the steps; wait up to :data:`FIRST_STEP_S` for the first.

    Args:
        pid: The process.
        place: Where its main thread was when dynprof reached it; it may hang there.
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
        text += f"; when dynprof reached it, its main thread was in {place}"
    return (
        f"{text}. If it hangs, py-spy dump --pid {pid} shows all threads; "
        f"dynprof status {pid} --json shows what would end the steps (steps_from)"
    )
