"""``dynprof arm`` and ``dynprof cancel``: request a window, or cancel the request."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynprof.captures.baselines import DEFAULT_KEEP
from dynprof.cli.config_directory import (
    Directory,
    by_role,
    directory_of,
    each_rank,
    health,
    live,
    other_config_hint,
    ranks_of,
    remote_leader,
    why_unwatched,
)
from dynprof.cli.numbers import at_least
from dynprof.cli.options import changes, inherited, with_settings
from dynprof.cli.outcome import (
    INVALID,
    NOT_ASKED,
    NOT_SERVED,
    NOT_WATCHED,
    RANK_LOST,
    UNREADABLE,
    fail,
    say,
)
from dynprof.cli.validate import predict_answer
from dynprof.config import ProfilerConfig, WatchConfig, parse_config, read_source
from dynprof.config.editing import change, locked
from dynprof.errors import ConfigError, Problem
from dynprof.journal.status import LEADS, NO_SOURCE
from dynprof.runtime.file_system import file_mount_problem
from dynprof.runtime.layout import CONFIG_NAME, rank_in_words
from dynprof.runtime.plural import counted, listed

if TYPE_CHECKING:
    from collections.abc import Collection

    from dynprof.cli.request_follower import Follower
    from dynprof.config import Parsed
    from dynprof.journal.edit_outcomes import Answer
    from dynprof.journal.status import Status

Wait = Annotated[
    bool,
    typer.Option("--wait", metavar="", help="Wait until every rank has saved."),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        parser=at_least(0.0),
        metavar="S",
        show_default=False,
        help="With --wait: stop waiting after S seconds.",
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        "--every",
        metavar="TIME",
        help="Repeat it: 30m, 2h, or 5000 steps.",
        show_default=False,
    ),
]
Defaults = Annotated[
    bool,
    typer.Option("--defaults", metavar="", help="Reset steps, ranks, detail and limits."),
]
_WATCH_PANEL = "Watch for slow steps"
Watch = Annotated[
    bool,
    typer.Option(
        "--watch", metavar="", help="Watch from now on; no window.", rich_help_panel=_WATCH_PANEL
    ),
]
NoWatch = Annotated[bool, typer.Option("--no-watch", hidden=True)]
SLOWER_THAN = 1.5
"""The limit of ``--watch``, in medians: the jitter of a usual job stays below it."""
REQUEST_ONLY = {"cancel": False, "start_step": 0, "every": None, "keep": DEFAULT_KEEP}
"""Settings that apply to one request only, and the values to which arm resets them."""
KEPT_BY_DEFAULTS = {
    "schema_", "activities", "backend", "prof_dir", "agreement", "storage", "watch", "metadata",
}  # fmt: skip
"""Settings that ``--defaults`` does not reset: they belong to the job, or to no request."""
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?) ?(s|m|min|h|steps?)")
_MINUTES = {"s": 1 / 60, "m": 1, "min": 1, "h": 60}
"""Minutes of each unit of ``--every``."""

POLL_S = 0.05
"""Seconds between two reads of the status files."""
FIRST_STATUS_S = 0.5
"""How long to wait for a first status, which follows 0.1 to 0.2 s after reading the config."""
READ_S = 5.0
"""How long to wait for a new process to read the save: it looks again within two seconds."""
WATCH = "watch"
"""The section of the watch for slow steps."""
CANCEL_FAILED_HINT = (
    "; what is open or waiting stays. Repair the file and cancel again,"
    ' or replace its content by {"cancel": true}'
)
"""What a cancel that failed leaves behind, and what to do."""
REPAIR_HINT = (
    "; correct the line, or remove the file and run dynprof init {directory}: "
    "live jobs then record one step"
)
"""What to do about a config file that has errors."""


@with_settings
def arm(
    directory: Directory,
    wait: Wait = False,
    timeout: Timeout = None,
    every: Every = None,
    defaults: Defaults = False,
    watch: Watch = False,
    no_watch: NoWatch = False,
    **given: Any,
) -> None:
    """Change the config's settings and save it: a running job records its next steps.

    Settings that you do not give keep their values from the file, except start_step, cancel, every
    and keep; the command prints which. With --defaults, steps, ranks, detail and limits have
    their defaults again, and settings of the job, such as prof_dir, stay. Use --no-with-stack to
    switch with_stack off. With --every, the window repeats until a cancel.
    The watch for slow steps is saved by itself, requests no window, and stays on until --no-watch.
    docs/settings.md explains all settings.

    Exit code 0: requested, and with --wait saved. 1: the config is invalid, nothing changed.
    2: there is no config. 3: no process watches the directory. 4: refused, superseded, cancelled or
    failed, or another rank leads. 5: a rank died, is stuck, is missing, takes no part, or
    the time is up. 6: no live rank matches. 130: Ctrl-C.

    Example: dynprof arm prof_config --active 5 --with-stack --ranks 0-3 --wait
    """
    asked = changes(given)
    if every is not None:
        asked["every",] = _interval(every)
    elif ("keep",) in asked:
        raise typer.BadParameter("--keep is for --every; give both, or neither")
    if not (watch or no_watch or _is_watch(asked)):
        resets = {**_defaults(), **REQUEST_ONLY} if defaults else REQUEST_ONLY
        _save_and_report(directory, asked, resets, wait=wait, timeout=timeout)
        return
    if any(keys[0] != WATCH for keys in asked):
        text = "the watch is saved by itself and requests no window; request one by a second arm"
        raise typer.BadParameter(text)
    if no_watch and (watch or asked):
        raise typer.BadParameter("--no-watch removes all settings of the watch; give it alone")
    _save_watch(directory, asked, is_on=not no_watch, wait=wait, timeout=timeout)


def _save_watch(
    directory: Path,
    asked: dict[tuple[str, ...], Any],
    *,
    is_on: bool,
    wait: bool,
    timeout: float | None,
) -> None:
    """Save the settings of the watch, unless the file has them: that would request a window."""
    path = directory_of(directory) / CONFIG_NAME
    try:
        before = parse_config(read_source(path).raw).config.watch
    except (OSError, ConfigError):
        before = WatchConfig()  # saving reports it
    if not is_on:
        asked = {(WATCH,): {}}
    elif not (before.is_on or asked.keys() & {(WATCH, "slower_than"), (WATCH, "longer_than_ms")}):
        asked = {**asked, (WATCH, "slower_than"): SLOWER_THAN}
    known = before.model_dump(mode="json")
    if is_on == before.is_on and all(known.get(keys[-1]) == asked[keys] for keys in asked if is_on):
        say(f"{path} is not changed: the watch is {'on' if is_on else 'off'} already", err=True)
        raise typer.Exit(0)
    _save_and_report(directory, asked, {}, wait=wait, timeout=timeout)


def _defaults() -> dict[str, Any]:
    """Return the settings that ``--defaults`` resets, with their defaults."""
    return ProfilerConfig().model_dump(mode="json", exclude=KEPT_BY_DEFAULTS)


def _interval(text: str) -> dict[str, float]:
    """Return the value of ``every`` for an interval on the command line."""
    found = _INTERVAL.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"--every: {text!r} is no interval; write 30m, 2h or 5000 steps")
    number, unit = found.groups()
    if unit.startswith("step"):
        return {"steps": int(number) if number.isdigit() else float(number)}
    minutes = float(number) * _MINUTES[unit]
    return {"minutes": int(minutes) if minutes.is_integer() else minutes}


def cancel(directory: Directory, wait: Wait = False, timeout: Timeout = None) -> None:
    """Close the open window, keep what it has recorded, and cancel the waiting request.

    Baselines end too; those that are saved stay. With --wait, wait until the open window is saved,
    and print the manifests.

    Exit codes are those of arm.

    Example: dynprof cancel prof_config
    """
    _save_and_report(directory, {("cancel",): True}, {"every": None}, wait=wait, timeout=timeout)


def _save_and_report(
    directory: Path,
    asked: dict[tuple[str, ...], Any],
    resets: dict[str, Any],
    *,
    wait: bool,
    timeout: float | None,
) -> None:
    if timeout is not None and not wait:
        raise typer.BadParameter("--timeout is for --wait; give both, or neither")
    path = directory_of(directory) / CONFIG_NAME
    stays = "if the request was saved, it stays active"
    has_undo = ("cancel",) not in asked and not _is_watch(asked)
    undo = f"; dynprof cancel {directory} cancels it" if has_undo else ""
    can_be_cancelled = True
    try:
        raw, before = _save_changes(path, asked, resets)
        stays = "the request stays active"
        code, why, can_be_cancelled = _after_saving(
            path, raw, before, asked, wait=wait, timeout=timeout
        )
    except KeyboardInterrupt:
        code, why = 130, "Ctrl-C"
    if why:
        if not can_be_cancelled:
            stays, undo = "recorded steps are still saved and sent", ""
        say(f"stopped waiting ({why}); {stays}{undo}", err=True)
    raise typer.Exit(code)


def _after_saving(
    path: Path,
    raw: bytes,
    before: list[Status],
    asked: dict[tuple[str, ...], Any],
    *,
    wait: bool,
    timeout: float | None,
) -> tuple[int, str, bool]:
    """Report the answer to the request, and follow it with ``--wait``.

    Returns:
        The exit code, why following stopped before the request was over, and whether a cancel
        could still stop the request.
    """
    if text := file_mount_problem(path):
        say(text, err=True)
    digest = hashlib.sha256(raw).hexdigest()
    before = _with_new_ranks(path.parent, digest, before)
    if not before:
        fail(f"{path} is saved, but {_why_no_rank(path.parent)}", NOT_WATCHED)
    parsed = parse_config(raw)
    config = parsed.config
    if followers := remote_leader(before):
        fail(f"{path} is saved, but {followers}; save it there", NOT_SERVED)
    if _is_watch(asked):
        _print_watching(path, before, config)
        return _followed(path, digest, before, before, timeout) if wait else (0, "", True)
    watching, leading, missing = _print_asked(path, before, parsed, asked)
    if not wait:
        return 0, "", True
    code, why, can_be_cancelled = _followed(path, digest, before, watching or leading, timeout)
    return max(code, RANK_LOST) if missing else code, why, can_be_cancelled


def _is_watch(asked: dict[tuple[str, ...], Any]) -> bool:
    """Return whether a save changes the watch, which requests no window."""
    return any(keys[0] == WATCH for keys in asked)


def _print_watching(path: Path, before: list[Status], config: ProfilerConfig) -> None:
    does = ("watches", "watch") if config.watch.is_on else ("stops watching", "stop watching")
    ranks = counted(len(before), f"live rank {does[0]}", f"live ranks {does[1]}")
    say(f"{path} is saved; {ranks} for slow steps", err=True)


def _print_asked(
    path: Path, before: list[Status], parsed: Parsed, asked: dict[tuple[str, ...], Any]
) -> tuple[list[Status], list[Status], bool]:
    """Print which ranks a saved request asks, and for what.

    Returns:
        The ranks here that it asks, the leading ranks that ask others, and whether one is missing.
    """
    config = parsed.config
    missing = _print_missing_ranks(before, config)
    if not config.cancel:
        _print_conflicts(before, config)
    watching = [s for s in before if config.cancel or config.selected_ranks.may_include(s.rank)]
    leading = [] if watching else _remote_leaders(before, config)
    if not (watching or leading):
        there = ranks_of(before, each_rank)
        ranks = config.selected_ranks
        which = f"--ranks {ranks}" if ("ranks",) in asked else f"ranks {ranks} of the file"
        text = f"{path} is saved, but no running rank matches {which}"
        fail(f"{text} (running: {there}); --ranks all matches all", NOT_ASKED)
    asked_of = counted(len(watching), "live rank")
    said = f"requested from {asked_of}" if watching else "requested through the leading rank here"
    say(f"{path} is saved; {said}", err=True)
    if not config.cancel:
        _print_request_notes(watching, inherited(config, asked), repeats=bool(config.every))
        _print_recorded_steps(config)
        _print_ignored_settings(parsed, path)
    return watching, leading, missing


def _followed(
    path: Path, digest: str, before: list[Status], asked: list[Status], timeout: float | None
) -> tuple[int, str, bool]:
    """Follow a save; return as :func:`_after_saving` does."""
    from dynprof.cli.request_follower import Follower

    follower = Follower(path, digest, before)
    code = _follow(follower, asked, timeout)
    return code, follower.stop_reason, follower.can_be_cancelled


def _follow(follower: Follower, asked: list[Status], timeout: float | None) -> int:
    try:
        return follower.follow(asked, timeout)
    except KeyboardInterrupt:
        follower.stop_reason = "Ctrl-C"
        return 130


def _why_no_rank(directory: Path) -> str:
    if live(directory):
        return "its process started after this save; save again to include it"
    return why_unwatched(directory)


def _print_request_notes(
    watching: list[Status], kept: dict[tuple[str, ...], str], *, repeats: bool = False
) -> None:
    if starting := sum(health(status) == "starting" for status in watching):
        ranks = counted(starting, "rank is still in its", "ranks are still in their")
        say(f"{ranks} first step; a window opens after it", err=True)
    for status in watching:
        if status.steps_from.startswith(NO_SOURCE):
            say(f"{status.named}: it has {status.steps_from}", err=True)
    for status in watching:
        if status.baselines and not repeats:
            say(f"{status.named}: {status.baselines}; baselines continue", err=True)
    if kept:
        resettable = [path[-1] for path in kept if path[0] not in KEPT_BY_DEFAULTS]
        hint = f"; --defaults resets {', '.join(resettable)}" if resettable else ""
        say(f"kept from the file: {', '.join(kept.values())}{hint}", err=True)


def _print_recorded_steps(config: ProfilerConfig) -> None:
    """Print which steps are recorded, if a warm-up comes between them and the named step."""
    warmup, multiple = config.warmup, config.multiple
    if warmup and config.named_step:
        first = config.named_step + warmup
        last = first + config.active - 1
        steps = f"step {first}" if first == last else f"steps {first}-{last}"
        say(f"records {steps}, after {counted(warmup, 'step')} of warm-up", err=True)
    elif warmup and multiple > 1:
        text = f"from the next multiple of {multiple} on, {counted(warmup, 'step')} of warm-up"
        say(f"{text}, then records {counted(config.active, 'step')}", err=True)


def _print_ignored_settings(parsed: Parsed, path: Path) -> None:
    """Print what the job will ignore; it reports refusals itself."""
    for text, is_refusal in predict_answer(parsed, path):
        if not is_refusal:
            say(text, err=True)


def _remote_leaders(before: list[Status], config: ProfilerConfig) -> list[Status]:
    """Return the leading ranks here whose jobs have requested ranks elsewhere."""
    leading = [status for status in before if status.agreement == LEADS and status.job]
    asked = config.selected_ranks
    first = 0 if asked.chosen or asked.every else min(begin for begin, _ in asked.intervals)
    return [status for status in leading if status.job and first < status.job.ranks]


def _print_missing_ranks(before: list[Status], config: ProfilerConfig) -> bool:
    """Print requested ranks without a status here; return whether any of them gets no request."""
    is_missing = False
    for role, those in by_role(before).items():
        missing = _missing(those, config)
        ranks = f"{role} {listed('rank', missing)}".lstrip()
        if missing and any(status.agreement == LEADS for status in those):
            first = rank_in_words(role, 0)
            say(f"{first} also sends the request to ranks without a status here: {ranks}", err=True)
        elif missing:
            is_missing = True
            it = "it is" if len(missing) == 1 else "they are"
            say(f"no request sent to {ranks}: {it} not running", err=True)
    return is_missing


def _missing(before: list[Status], config: ProfilerConfig) -> list[int]:
    """Return the requested ranks of the job that are not running."""
    there = {status.rank for status in before}
    size = _world_size(before)
    return [rank for rank in range(size) if rank in config.selected_ranks and rank not in there]


def _world_size(before: list[Status]) -> int:
    return max(status.world_size for status in before)


def _save_changes(
    path: Path, asked: dict[tuple[str, ...], Any], resets: dict[str, Any]
) -> tuple[bytes, list[Status]]:
    """Save the changes; return the written bytes and the ranks that were live before."""
    try:
        with locked(path.parent):
            before = live(path.parent)
            return change(path, asked, resets), before
    except UnicodeError:
        fail(f"{path}: half of a surrogate pair is not a character; nothing was changed", INVALID)
    except FileNotFoundError:
        hint = other_config_hint(path.parent) or "; dynprof init creates it"
        fail(f"{path}: there is no such file{hint}", UNREADABLE)
    except ConfigError as error:
        for problem in error.problems:
            say(_named(problem, path, asked), err=True)
        in_file = any(problem.line for problem in error.problems)
        repair = REPAIR_HINT.format(directory=path.parent) if in_file else ""
        more = CANCEL_FAILED_HINT if ("cancel",) in asked else repair
        fail(f"{path}: nothing was changed{more}", INVALID)
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}", UNREADABLE)


def _named(problem: Problem, path: Path, asked: Collection[tuple[str, ...]]) -> str:
    """Return a problem with its option if the command line has the value, else with the file."""
    keys = tuple(problem.pointer.split("/")[1:])
    option = next((one[-1] for one in asked if keys[: len(one)] == one), "")
    given = option and not problem.line
    return f"--{option.replace('_', '-')}: {problem.text}" if given else f"{path}: {problem}"


def _print_conflicts(before: list[Status], config: ProfilerConfig) -> None:
    """Print requested ranks that the job does not have, and requests that this one supersedes."""
    if text := config.selected_ranks.lacking(_world_size(before)):
        say(text, err=True)
    patience_s = config.agreement.patience_s
    asked = [status for status in before if config.selected_ranks.may_include(status.rank)]
    waiting = {
        answer.number for one in asked for answer in one.edits if answer.outcome == "waiting"
    }
    for status in before:
        for answer in status.edits:
            ends_too = bool(status.agreement) and answer.number in waiting
            if (status in asked or ends_too) and (
                text := _effect_on_earlier(status, answer, patience_s)
            ):
                say(f"{status.named}: request {answer.number} {text}", err=True)


def _effect_on_earlier(status: Status, answer: Answer, patience_s: float) -> str:
    """Return how an earlier request and this one affect each other; empty for no effect."""
    if answer.outcome == "waiting":
        unless = ", unless other ranks have opened it" if status.agreement else ""
        return f"is waiting and will be superseded{unless}"
    if answer.outcome != "open":
        return ""
    done, steps = status.progress or (0, 0)
    left = counted(steps - done, "step")
    most = f" for {patience_s:g} s at most, then leaves the rank out (agreement.patience_s)"
    waits = f"waits for it{most if status.agreement else ''}"
    return f"is open for {left} more; this one {waits}; dynprof cancel ends both"


def _with_new_ranks(directory: Path, sha256: str, before: list[Status]) -> list[Status]:
    """Return the ranks that a save asks: those before it, and newer ones that have read it.

    A process that finds the saved file when it starts does not treat it as a request.

    Args:
        directory: The directory of the config.
        sha256: Digest of the saved config.
        before: The ranks that were live before the save.
    """
    began_s = time.monotonic()
    known = {status.process for status in before}
    while True:
        new = [status for status in live(directory) if status.process not in known]
        informed = [status for status in new if any(a.sha256 == sha256 for a in status.edits)]
        patience_s = READ_S if new else 0.0 if before else FIRST_STATUS_S
        if (new and len(informed) == len(new)) or time.monotonic() - began_s >= patience_s:
            # As they were before the save: the follower reads its outcome later.
            return [*before, *(replace(status, edits=()) for status in informed)]
        time.sleep(POLL_S)
