"""``dynprof arm`` and ``dynprof cancel``: ask for a window, or call it off."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynprof.cli.config_directory import (
    Directory,
    by_role,
    directory_of,
    each_rank,
    elsewhere,
    health,
    live,
    nobody,
    ranks_of,
)
from dynprof.cli.late_ranks import with_newcomers
from dynprof.cli.numbers import at_least
from dynprof.cli.options import changes, inherited, with_settings
from dynprof.cli.outcome import INVALID, LOST, NOBODY, NOT_ASKED, UNREADABLE, UNSERVED, fail, say
from dynprof.cli.preflight import foretold
from dynprof.cli.whole_job import led_elsewhere
from dynprof.config import parse_config
from dynprof.config.editing import change, locked
from dynprof.errors import ConfigError
from dynprof.journal.status import LEADS, NOBODY_YET
from dynprof.runtime.file_system import mounted_alone
from dynprof.runtime.layout import CONFIG_NAME, rank_in_words
from dynprof.runtime.plural import counted, listed, listed_ranks

if TYPE_CHECKING:
    from dynprof.cli.request_follower import Follower
    from dynprof.config import Parsed, ProfilerConfig
    from dynprof.journal.edit_outcomes import Answer
    from dynprof.journal.status import Status

Wait = Annotated[
    bool,
    typer.Option("--wait", metavar="", help="Follow the ranks until all is saved."),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        parser=at_least(0.0),
        metavar="S",
        show_default=False,
        help="With --wait: at most so long.",
    ),
]
ANEW = {"cancel": False, "start_step": 0}
"""What belongs to one request only: not kept from the one before."""

STAYS = (
    "; what is open stays open, and what waits goes on to wait: mend the file and cancel once more,"
    ' or put {"cancel": true} in its place'
)
"""What a cancel leaves that does not come about."""
MEND = (
    "; correct the line, or remove the file and run dynprof init {directory}, "
    "which live jobs take for a request"
)
"""What to do about a file that is broken itself."""


@with_settings
def arm(directory: Directory, wait: Wait = False, timeout: Timeout = None, **given: Any) -> None:
    """Change the config's settings and save it: a running job records its next steps.

    Settings that are not given stay as they stand in the file, and are named, but for activities;
    only start_step and cancel begin anew. What is only on or off is switched off by --no-with-stack
    and the like. All of it is explained in docs/settings.md, and by your editor in the config.

    Exit code 0: asked, and with --wait saved; 1: the config cannot be used, nothing changed;
    2: there is no config; 3: no process watches the directory; 4: refused, superseded, cancelled
    or failed, or another rank leads; 5: a rank died, stands still, takes no part or was not there
    in time; 6: none of the live ranks is asked; 130: Ctrl-C.

    Example: dynprof arm prof_config --active 5 --with-stack --ranks 0-3 --wait
    """
    _save(directory, changes(given), ANEW, wait=wait, timeout=timeout)


def cancel(directory: Directory, wait: Wait = False, timeout: Timeout = None) -> None:
    """Close the open window, keeping what it has, and disarm the waiting one.

    With --wait, follow the ranks until what was open is saved, and print the manifests.

    Exit codes as for arm.

    Example: dynprof cancel prof_config
    """
    _save(directory, {("cancel",): True}, {}, wait=wait, timeout=timeout)


def _save(
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
    stays = "if the request was saved, it stays"
    undo = "" if ("cancel",) in asked else f"; dynprof cancel {directory} takes it back"
    can_be_cancelled = True
    try:
        raw, before = _changed(path, asked, resets)
        stays = "the request stays"
        code, why, can_be_cancelled = _after_saving(
            path, raw, before, asked, wait=wait, timeout=timeout
        )
    except KeyboardInterrupt:
        code, why = 130, "Ctrl-C"
    if why:
        if not can_be_cancelled:
            stays, undo = "what is recorded is saved and sent all the same", ""
        say(f"not waiting any more ({why}); {stays}{undo}", err=True)
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
        The exit code, why the request is followed no more though it is not over, and whether a
        cancel could still take it back.
    """
    if text := mounted_alone(path):
        say(text, err=True)
    digest = hashlib.sha256(raw).hexdigest()
    before = with_newcomers(path.parent, digest, before)
    if not before:
        fail(f"{path} is saved, but {_nobody_asked(path.parent)}", NOBODY)
    parsed = parse_config(raw)
    config = parsed.config
    if followers := led_elsewhere(before):
        fail(f"{path} is saved, but {followers}; save it there", UNSERVED)
    missing = _tell_who_is_missing(before, config)
    if not config.cancel:
        _warn_of_others(before, config)
    watching = [s for s in before if config.cancel or config.selected_ranks.may_include(s.rank)]
    leading = [] if watching else _leads_for_others(before, config)
    if not (watching or leading):
        there = ranks_of(before, each_rank)
        text = f"{path} is saved, but asks for no rank that is running (running: {there})"
        fail(f"{text}; --ranks all asks for all", NOT_ASKED)
    asked_of = counted(len(watching), "live rank is", "live ranks are")
    said = f"{asked_of} asked" if watching else "the rank here leads those that are asked"
    say(f"{path} is saved; {said}", err=True)
    if not config.cancel:
        _tell_what_is_asked(watching, inherited(config, asked))
        _tell_what_is_recorded(config)
        _tell_what_has_no_effect(parsed, path)
    if not wait:
        return 0, "", True
    from dynprof.cli.request_follower import Follower

    follower = Follower(path, digest, before)
    code = _followed(follower, watching or leading, timeout)
    code = max(code, LOST) if missing else code
    return code, follower.gave_up, follower.can_be_cancelled


def _followed(follower: Follower, asked: list[Status], timeout: float | None) -> int:
    try:
        return follower.follow(asked, timeout)
    except KeyboardInterrupt:
        follower.gave_up = "Ctrl-C"
        return 130


def _nobody_asked(directory: Path) -> str:
    if live(directory):
        return "who watches it has begun since, and is asked by the next save"
    return nobody(directory)


def _tell_what_is_asked(watching: list[Status], rest: list[str]) -> None:
    if starting := sum(health(status) == "starting" for status in watching):
        ranks = counted(starting, "rank is", "ranks are")
        say(f"{ranks} in the first step still: a window opens after it", err=True)
    for status in watching:
        if status.steps_from.startswith(NOBODY_YET):
            say(f"{status.named}: its steps come from {status.steps_from}", err=True)
    if rest:
        say(f"kept from the file: {', '.join(rest)}", err=True)


def _tell_what_is_recorded(config: ProfilerConfig) -> None:
    """Say which steps, where a warm-up comes between the one that is named and those."""
    warmup, multiple = config.warmup, config.multiple
    if warmup and config.named_step:
        first = config.named_step + warmup
        last = first + config.active - 1
        steps = f"step {first}" if first == last else f"steps {first}-{last}"
        say(f"records {steps}, after {counted(warmup, 'step')} of warm-up", err=True)
    elif warmup and multiple > 1:
        text = f"from the next multiple of {multiple} on, {counted(warmup, 'step')} of warm-up"
        say(f"{text}, then records {counted(config.active, 'step')}", err=True)


def _tell_what_has_no_effect(parsed: Parsed, path: Path) -> None:
    """Say what the job will leave out; what it refuses it says itself."""
    for text, is_refusal in foretold(parsed, path):
        if not is_refusal:
            say(text, err=True)


def _leads_for_others(before: list[Status], config: ProfilerConfig) -> list[Status]:
    """Return who leads ranks that are asked for and watch elsewhere."""
    leading = [status for status in before if status.agreement == LEADS and status.job]
    asked = config.selected_ranks
    first = 0 if asked.chosen or asked.every else min(begin for begin, _ in asked.intervals)
    return [status for status in leading if status.job and first < status.job.ranks]


def _tell_who_is_missing(before: list[Status], config: ProfilerConfig) -> bool:
    """Say which ranks are not seen here; return whether some of them are asked by no rank."""
    unasked = False
    for role, those in by_role(before).items():
        missing = _missing(those, config)
        ranks = f"{role} {listed('rank', missing)}".lstrip()
        if missing and any(status.agreement == LEADS for status in those):
            first = rank_in_words(role, 0)
            say(f"{first} asks those of which nothing is known here, too: {ranks}", err=True)
        elif missing:
            unasked = True
            say(f"not there, and not asked: {ranks}", err=True)
    return unasked


def _missing(before: list[Status], config: ProfilerConfig) -> list[int]:
    """Return the ranks asked for that the live ones count on, but that are not there."""
    there = {status.rank for status in before}
    size = _world_size(before)
    return [rank for rank in range(size) if rank in config.selected_ranks and rank not in there]


def _world_size(before: list[Status]) -> int:
    return max(status.world_size for status in before)


def _changed(
    path: Path, asked: dict[tuple[str, ...], Any], resets: dict[str, Any]
) -> tuple[bytes, list[Status]]:
    """Save the changes; return what was written, and which ranks were alive before."""
    try:
        with locked(path.parent):
            before = live(path.parent)
            return change(path, asked, resets), before
    except UnicodeError:
        fail(f"{path}: half of a surrogate pair is no character; nothing was changed", INVALID)
    except FileNotFoundError:
        hint = elsewhere(path.parent) or "; dynprof init makes one"
        fail(f"{path}: there is no such file{hint}", UNREADABLE)
    except ConfigError as error:
        for problem in error.problems:
            say(f"{path}: {problem}", err=True)
        in_file = any(problem.line for problem in error.problems)
        mend = MEND.format(directory=path.parent) if in_file else ""
        more = STAYS if ("cancel",) in asked else mend
        fail(f"{path}: nothing was changed{more}", INVALID)
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}", UNREADABLE)


def _warn_of_others(before: list[Status], config: ProfilerConfig) -> None:
    """Say which ranks nobody has, and whose requests end by this one."""
    size = _world_size(before)
    beyond = config.selected_ranks.beyond(size)
    if beyond.intervals:
        has = listed_ranks(range(size)) if size > 1 else "rank 0 only"
        noun = "rank" if str(beyond).isdecimal() else "ranks"
        say(f"this job has {has}, no {noun} {beyond}", err=True)
    patience_s = config.agreement.patience_s
    asked = [status for status in before if config.selected_ranks.may_include(status.rank)]
    waiting = {
        answer.number for one in asked for answer in one.edits if answer.outcome == "waiting"
    }
    for status in before:
        for answer in status.edits:
            ends_too = bool(status.agreement) and answer.number in waiting
            if (status in asked or ends_too) and (text := _in_the_way(status, answer, patience_s)):
                say(f"{status.named}: request {answer.number} {text}", err=True)


def _in_the_way(status: Status, answer: Answer, patience_s: float) -> str:
    """Say what becomes of an earlier request, and what it makes of this one."""
    if answer.outcome == "waiting":
        unless = ", unless others have opened it" if status.agreement else ""
        return f"waits there and is superseded{unless}"
    if answer.outcome != "open":
        return ""
    done, steps = status.progress or (0, 0)
    left = counted(steps - done, "step")
    most = f" for {patience_s:g} s at most, then leaves the rank out (agreement.patience_s)"
    waits = f"waits for it{most if status.agreement else ''}"
    return f"is open there for {left} more, and this one {waits}; dynprof cancel ends both"
