"""Reads a config's directory for the commands: paths, status files and the health of ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.outcome import NOT_WATCHED, UNREADABLE, fail, say, say_skipped
from dynprof.errors import CaptureError, OwnerError, describe
from dynprof.journal.journal import printable
from dynprof.journal.pace_changes import moment
from dynprof.journal.status import (
    LEADS,
    LIVE,
    RUNNING,
    Status,
    common_moment,
    load_status,
    of_present_run,
)
from dynprof.runtime.acting_user import act_as_owner
from dynprof.runtime.clock import local
from dynprof.runtime.destination import is_url
from dynprof.runtime.job_files import written_s
from dynprof.runtime.layout import CONFIG_NAME, STATUS_DIR, STATUS_FILES
from dynprof.runtime.plural import listed, listed_ranks
from dynprof.runtime.safe_open import open_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dynprof.cli.terminal_tables import Column

MAX_RANKS = 1_000_000
"""Ranks of a job that are counted: a status file may name any number."""

_DOWNLOADED = "dynprof.downloaded"
"""Key in the context of a command that reads a URL."""
_NAMED = typer.Argument(
    help="The directory given to dp.init(), or the ID of a process that watches one.",
    show_default=False,
)
Directory = Annotated[Path, _NAMED]
OptionalDirectory = Annotated[Path | None, _NAMED]


def run_as_owner(path: Path, named: str = "") -> Path:
    """Return a path argument; if root runs the command, run it again as the path's owner.

    Every command that takes a path calls this before it opens anything.

    Args:
        path: The path.
        named: The word on the command line, if it is not the path.
    """
    try:
        return act_as_owner(path, printable, named=named)
    except OwnerError as error:
        fail(str(error), UNREADABLE)


def captures_of(path: Path) -> Path:
    """Return where to look for captures: a path, or the directory that a process watches."""
    if str(path) == path.name and path.name.isdecimal() and not os.path.lexists(path):
        return run_as_owner(_directory_of_process(int(path.name)), named=path.name)
    return run_as_owner(path)


def _url_of(path: Path) -> str:
    """Return the URL that was given as a path; empty if it is none."""
    scheme, colon, rest = str(path).partition(":/")
    return f"{scheme}://{rest}" if colon and scheme.isalnum() and not path.exists() else ""


def _downloaded(context: typer.Context, url: str) -> Path:
    from dynprof.analysis.runs.remote_files import downloaded

    context.meta[_DOWNLOADED] = True
    try:
        return context.with_resource(downloaded(url))
    except (CaptureError, OSError) as error:
        fail(describe(error), UNREADABLE)


def default_output(context: typer.Context) -> str | None:
    """Return the folder for what a command makes of a URL; None for that next to the capture."""
    return "./" if context.meta.get(_DOWNLOADED) else None


def path_argument(context: typer.Context, path: Path) -> Path:
    """Return an argument as :func:`run_as_owner` does; unchanged during shell completion."""
    return path if context.resilient_parsing else run_as_owner(path)


def captures_argument(context: typer.Context, path: Path) -> Path:
    """Return an argument as :func:`captures_of` does; unchanged during shell completion.

    The newest window at a URL is downloaded, and removed when the command ends.
    """
    if context.resilient_parsing:
        return path
    url = _url_of(path)
    return _downloaded(context, url) if url else captures_of(path)


Captures = Annotated[
    Path,
    typer.Argument(
        help="A trace, a folder with captures, its URL, or the ID of a process that watches one.",
        show_default=False,
        callback=captures_argument,
    ),
]


def directory_of(path: Path) -> Path:
    """Return the directory for a directory, a config or a process ID; exit if there is none."""
    if _url_of(path):  # which may have a secret
        fail("a URL is no directory; the config of a job is on its own machine", UNREADABLE)
    path = captures_of(path)
    directory = path.parent if path.name == CONFIG_NAME else path
    if not directory.is_dir():
        where = "" if directory.is_absolute() else f" in {Path.cwd()}"
        text = f"there is no directory {directory}{where}"
        fail(f'{text}; a job creates it with dp.init("{directory}") or dynprof run', UNREADABLE)
    return directory


def _directory_of_process(pid: int) -> Path:
    import psutil

    from dynprof.launch.processes import watched_process

    try:
        watched = watched_process(pid)
    except psutil.NoSuchProcess:
        fail(f"there is no directory {pid}, and no process {pid}", UNREADABLE)
    except psutil.AccessDenied:
        fail(
            f"process {pid} belongs to another user; give the directory that it watches", UNREADABLE
        )
    if watched is None:
        fail(
            f"process {pid} watches no config; dynprof attach {pid} makes it watch one", NOT_WATCHED
        )
    return watched.directory


def statuses(directory: Path) -> list[Status]:
    """Return the status of every rank, in order of role and rank."""
    found = []
    place = directory / STATUS_DIR
    with contextlib.suppress(OSError), open_folder(place) as folder:
        for path in place.glob(STATUS_FILES):
            with contextlib.suppress(CaptureError):
                found.append(load_status(path, folder, may_write=True))
    found = of_present_run(found, time.time())
    return sorted(found, key=lambda status: (status.role, status.rank))


def by_role(found: Iterable[Status]) -> dict[str, list[Status]]:
    """Return the ranks of each role of the job, the unnamed role first."""
    roles: dict[str, list[Status]] = {}
    for one in sorted(found, key=lambda status: status.role):
        roles.setdefault(one.role, []).append(one)
    return roles


def ranks_of(found: Iterable[Status], named: Callable[[list[int]], str] = listed_ranks) -> str:
    """Return ``ranks 0 to 3, rollout ranks 0 to 1``.

    Args:
        found: The status of the ranks.
        named: Formats the ranks of one role.
    """
    roles = by_role(found).items()
    return ", ".join(
        f"{role} {named([one.rank for one in those])}".lstrip() for role, those in roles
    )


def each_rank(ranks: list[int]) -> str:
    """Return ``ranks 0, 1``; for :func:`ranks_of`."""
    return listed("rank", ranks)


def remote_leader(found: Sequence[Status]) -> str:
    """Return which rank elsewhere leads the ranks of a directory; empty if none does."""
    parts = {status.agreement for status in found}
    if not parts or "" in parts or LEADS in parts:
        return ""
    ranks = ranks_of(found, each_rank)
    return (
        f"{ranks} {'follow' if len(found) > 1 else 'follows'}{min(parts).removeprefix('follows')}"
    )


def lost_ranks(found: Sequence[Status]) -> list[str]:
    """Return which ranks of a running job have ended, and which have no status."""
    texts: list[str] = []
    for those in by_role(found).values():
        running = {one.rank for one in those if health(one) in RUNNING}
        size = max((one.world_size for one in those if one.rank in running), default=0)
        gone = [one for one in those if one.rank not in running and one.rank < size]
        texts += [_end_of(one, those) for one in gone]
    return [*texts, *missing_ranks(found)]


def _end_of(status: Status, others: Sequence[Status]) -> str:
    """Return how a rank has ended, and what another one has seen of it."""
    seen = [one for one in others if one.death.startswith(f"{status.named} ")]
    when, how = moment(status.heartbeat, time.time()), health(status)
    texts = {"failed": f"failed at {when}: {status.failure}", "stopped": f"has ended at {when}"}
    text = f"{status.named} {texts.get(how, f'is {how} (last heard {when})')}"
    return "; ".join([text, *(f"{one.named} saw that {one.death}" for one in seen[:1])])


def missing_ranks(found: Sequence[Status]) -> list[str]:
    """Return which ranks of a running job have no status, unless their leader hears all."""
    texts = []
    for role, those in by_role(found).items():
        running = [one for one in those if health(one) in RUNNING]
        states = [one.job.states for one in running if one.job and one.job.states]
        size = min(MAX_RANKS, max((one.world_size for one in running), default=0))
        absent = sorted(set(range(size)) - {one.rank for one in those})
        if absent and not any(each.get("missing", 0) == 0 for each in states):
            has = "has not called init()" if len(absent) == 1 else "have not called init()"
            text = f"{has}, or not in this directory: there is no status"
            texts.append(f"{role} {listed_ranks(absent)} {text}".lstrip())
    return texts


def why_unwatched(directory: Path) -> str:
    """Return the error message for a directory that no live process watches."""
    text = f"no process watches {directory}"
    if last := max(statuses(directory), key=lambda status: status.heartbeat, default=None):
        if health(last) == "ending":
            ending = f"{last.named}, {last.host}, pid {last.pid}"
            return f"{text} any more: the process is ending ({ending}): {last.ending}"
        ended = "failed" if last.failure else "stopped"
        how = ended if last.state == "stopped" else "last reported"
        text += f"; the last one ({last.named}, {last.host}, pid {last.pid}) {how} at "
        why = f": {last.failure}" if last.failure else ""
        return f"{text}{local(last.heartbeat)}{why}{_attach_hint(last)}"
    if unreadable := _unreadable_status(directory):
        unknown = f"it is not known which processes watch {directory}"
        return f"{unknown}: status file {unreadable} cannot be read"
    return f"{text}; no job has called dp.init() on it yet{other_config_hint(directory)}"


def _unreadable_status(directory: Path) -> Path | None:
    """Return a status file of a directory whose status files cannot be read; None without any."""
    return min((directory / STATUS_DIR).glob(STATUS_FILES), default=None)


def _attach_hint(status: Status) -> str:
    if not status.runs_on:
        return ""
    if status.process_exits:
        text = ", but the process has not exited: it is in an atexit function"
        return f"{text}; py-spy dump --pid {status.pid} shows where"
    return f", but the process is still running: dynprof attach {status.pid} watches it again"


def other_config_hint(directory: Path) -> str:
    """Return a hint at configs in subdirectories, to append to a message; empty for none."""
    found = sorted(path.parent for path in directory.glob(f"*/{CONFIG_NAME}"))
    return f"; there is a config in {', '.join(map(str, found[:3]))}" if found else ""


def health(status: Status) -> str:
    """Return the current health of a process."""
    return status.health(time.time())


def health_in_detail(status: Status) -> str:
    """Return the health that ``status`` shows: it also tells why a process is still there.

    It is exiting or unwatched if its session has stopped and its process still runs.
    """
    found = health(status)
    if found == "stopped" and status.runs_on:
        return "exiting" if status.process_exits else "unwatched"
    return found


def moment_of(found: Iterable[Status]) -> float | None:
    """Return the moment whose steps are shown for all ranks; None if no rank writes."""
    return common_moment(found, time.time())


def with_step_age(columns: Sequence[Column], moment_s: float | None) -> list[Column]:
    """Return the columns with the age of the steps in their heading."""
    head = "step" if moment_s is None else f"step {max(0.0, time.time() - moment_s):.0f} s ago"
    return [replace(one, head=head) if one.head == "step" else one for one in columns]


def step_of(status: Status, moment_s: float | None) -> int:
    """Return the step of a rank at a moment; the last one that it wrote if there is no moment."""
    return status.step if moment_s is None else status.step_at(moment_s)


def in_json(status: Status, moment_s: float | None) -> dict[str, object]:
    """Return the object that ``--json`` prints for a rank."""
    told = dataclasses.asdict(status)
    del told["recent_steps"]  # only step_of() needs them
    return {**told, "health": health_in_detail(status), "step_at_moment": step_of(status, moment_s)}


def live(directory: Path) -> list[Status]:
    """Return the status of the ranks that accept requests, including stuck ones."""
    return [status for status in statuses(directory) if health(status) in LIVE]


def say_if_elsewhere(path: Path) -> None:
    """Print where a job's newest captures are, if the given folder has only older ones.

    Args:
        path: The argument of the command: a config's directory, or any other folder or file.
    """
    told = [status.last_capture for status in statuses(path) if status.last_capture]
    sent = [name for name in told if is_url(name)]
    manifests = [Path(name) for name in told if Path(name).is_absolute()]
    newest = max((written_s(one) for one in manifests), default=0.0)
    if not sent and (not newest or newest <= _newest_below(path)):
        return
    folders = sorted({str(one.parent.parent) for one in manifests if written_s(one)})
    folders += sorted({name.rpartition("/info/")[0] for name in sent})
    say(f"newer captures are elsewhere, as prof_dir says: {', '.join(folders)}", err=True)


def _newest_below(path: Path) -> float:
    from dynprof.analysis.runs.one_trace import traces_in

    try:
        return max(written_s(trace) for trace in traces_in(path))
    except CaptureError:
        return 0.0


def window_to_read(path: Path) -> Path:
    """Return the window to read below a path; print which newer windows have no capture."""
    from dynprof.analysis.runs.recorded_window import newest_window

    path = path.resolve() if path.is_symlink() else path  # a link that the user names is followed
    say_skipped(path)
    found, passed_over = newest_window(path)
    for words in passed_over:
        say(f"skipped: {words}", err=True)
    return found
