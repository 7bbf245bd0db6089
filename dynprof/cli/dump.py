"""``dynprof dump``: print what each rank executes, and which ranks differ from the others."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import (
    Directory,
    directory_of,
    health,
    lost_ranks,
    statuses,
    why_unwatched,
)
from dynprof.cli.outcome import NOT_SERVED, NOT_WATCHED, fail, say
from dynprof.errors import CaptureError, reason
from dynprof.journal.stack_dump import (
    CHILDREN_S,
    StackDump,
    dump_from_outside,
    layout_of,
    load_dump,
    owner_of,
    request_stacks,
    some_of,
    where_children,
    write_dump,
)
from dynprof.journal.status import RUNNING
from dynprof.runtime.clock import local
from dynprof.runtime.layout import Layout, host_name, pid_namespace, rank_in_words
from dynprof.runtime.plural import counted, listed_ranks
from dynprof.runtime.stacks import MAIN, place_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dynprof.journal.status import Status
    from dynprof.runtime.stacks import ThreadStack

ANSWER_S = 4.0
"""Seconds in which a rank answers: it looks for requests every second, on a busy machine later."""
COMPLETE_S = CHILDREN_S + 15.0
"""Seconds in which it adds child processes. The last one may take until the timeout of py-spy."""
POLL_S = 0.05
MAX_READ = 8
"""Silent ranks that ``status`` reads: about 0.1 s each."""
MAX_LOST = 16
"""Ranks that have ended which are named first."""
_COLLECTIVES = re.compile(
    r"(?P<name>[^. ]+) \(.*[\\/]torch[\\/]distributed[\\/]distributed_c10d\.py:"
)
_BACKWARD = re.compile(r"_engine_run_backward \(.*[\\/]torch[\\/]autograd[\\/]graph\.py:")


def dump(
    directory: Directory,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object for all ranks.")
    ] = False,
) -> None:
    """Print what each rank executes: the Python stacks of its threads and child processes.

    Equal stacks are printed once. The first lines name the ranks that have ended or have no status,
    then those that are elsewhere than the others. Ranks whose interpreter does not run are read
    with py-spy, if it is installed and permitted. The stacks are also next to the logs, in files
    that end with .stacks.

    Exit code 0: all stacks are printed. 2: there is no such directory. 3: no rank runs. 4: some
    rank has no stacks; the message says why.

    Example: dynprof dump prof_config
    """
    directory = directory_of(directory)
    every = statuses(directory)
    ranks = [one for one in every if health(one) in RUNNING]
    if not ranks:
        fail(why_unwatched(directory), NOT_WATCHED)
    lost = lost_ranks(every)
    answered = _answers(directory, ranks)
    found = [answered.get(one.process) or _from_outside(directory, one) for one in ranks]
    dumps = [one for one in found if isinstance(one, StackDump)]
    why_none = [one for one in found if isinstance(one, str)]
    if as_json:
        told = {"ranks": list(map(dataclasses.asdict, dumps)), "summary": [*lost, *where(dumps)]}
        typer.echo(json.dumps({**told, "without_stacks": [*lost, *why_none]}, indent=2))
    else:
        say("\n".join([*lost[:MAX_LOST], *_more_lost(lost), *report(dumps)]))
    if why_none or lost:
        fail("\n".join(why_none) or "some ranks have no stacks, as said above", NOT_SERVED)


def _more_lost(lost: list[str]) -> list[str]:
    count = len(lost[MAX_LOST:])
    return [f"{counted(count, 'more line')} about ranks that have ended; see --json"] * bool(count)


def _answers(directory: Path, ranks: list[Status]) -> dict[object, StackDump]:
    """Return the stacks that ranks write themselves, by rank, host and PID."""
    try:
        request = request_stacks(Layout.here(directory, 0))
    except OSError as error:
        say(f"the ranks cannot be asked ({reason(error)}); py-spy is used instead", err=True)
        return {}
    began_s = time.monotonic()
    found: dict[object, StackDump] = {}
    while True:
        for one in ranks:
            known = found.get(one.process)
            dump = None if known and known.complete else _newest(directory, one)
            if dump and int(dump.request) >= int(request):
                found[one.process] = dump
        expected = [one for one in ranks if one.writes(time.time())]
        passed_s = time.monotonic() - began_s
        is_done = all(one.complete for one in found.values())
        all_said = len(found) >= len(expected) or passed_s > ANSWER_S
        if all_said and (is_done or passed_s > COMPLETE_S):
            return found
        time.sleep(POLL_S)


def _newest(directory: Path, status: Status) -> StackDump | None:
    """Return the stacks that were written last for a rank; None if there are none."""
    try:
        dump = load_dump(layout_of(directory, status).stacks)
    except CaptureError:
        return None
    return dump if dump.request.isdecimal() else None


def _from_outside(directory: Path, status: Status) -> StackDump | str:
    """Return the stacks of a rank that did not answer, or why there are none."""
    if (status.host, status.pid_namespace) != (host_name(), pid_namespace()):
        named = f"{status.named} (process {status.pid} on {status.host})"
        return f"{named} did not answer; run dynprof dump on its machine, in its container"
    try:
        found = dump_from_outside(directory.absolute(), status)
        write_dump(layout_of(directory, status).stacks, found)
    except CaptureError as error:
        return str(error)
    except OSError as error:
        say(f"the stacks of {status.named} cannot be saved: {reason(error)}", err=True)
    return found


def places_of(stuck: Iterable[Status], directory: Path) -> str:
    """Return where stuck ranks were when they became stuck or were read later; empty if unknown.

    A rank of this machine whose interpreter does not run, and that no other rank read, is read now.
    """
    now_s = time.time()
    known = [(one, _newest(directory, one)) for one in stuck]
    dumps = [dump for one, dump in known if dump and now_s - dump.taken_at < one.stuck_s(now_s)]
    read = {(dump.role, dump.rank) for dump in dumps}
    silent = [one for one, _ in known if not one.writes(now_s) and (one.role, one.rank) not in read]
    now_read = [_from_outside(directory, one) for one in silent[:MAX_READ]]
    dumps += [dump for dump in now_read if isinstance(dump, StackDump)]
    return "; ".join([*where(dumps), *where_children(dumps)[:1]])


def where(dumps: Iterable[StackDump]) -> list[str]:
    """Return where the training threads are: ranks that wait in no collective first, then fewest.

    Of a silent rank it is the thread that holds the GIL, if that is known.

    It states places. Whether a step is merely long, such as an evaluation, a stack does not tell.
    In the backward pass of several ranks C++ code may wait for the others, without a Python frame.
    """
    ranks: dict[tuple[bool, str, tuple[str, str]], list[StackDump]] = {}
    found = list(dumps)
    for one in found:
        thread = one.blocking
        frames = thread.frames if thread else ()
        waits_in = collective(frames)
        place = f"in {waits_in or place_in(frames) or 'no Python function'}"
        may_wait = len(found) > 1 and not waits_in and bool(_BACKWARD.match("".join(frames[:1])))
        if thread and thread is not one.process.training:
            place += f" on thread {thread.name}, which holds the GIL"
        if may_wait:
            place += ", where the backward pass may wait for other ranks"
        verbs = ("waits", "wait") if waits_in else ("is", "are")
        ranks.setdefault((may_wait or bool(waits_in), place, verbs), []).append(one)
    order = sorted(ranks.items(), key=lambda group: (group[0][0], len(group[1])))
    return [
        f"{_named(those)} {verbs[len(those) > 1]} {place}" for (_, place, verbs), those in order
    ]


def collective(frames: Iterable[str]) -> str:
    """Return the function of torch.distributed in a stack that the script called, with its line."""
    found = [frame for frame in frames if (match := _COLLECTIVES.match(frame)) and match["name"]]
    public = [one for one in found if not one.startswith("_")]
    if not public:
        return ""
    name, _, place = public[0].partition(" (")
    return f"{name} ({Path(place).name}"


def _named(dumps: Iterable[StackDump]) -> str:
    roles: dict[str, list[int]] = {}
    for one in dumps:
        roles.setdefault(one.role, []).append(one.rank)
    return ", ".join(f"{role} {listed_ranks(ranks)}".lstrip() for role, ranks in roles.items())


def report(dumps: list[StackDump]) -> list[str]:
    """Return the lines that the command prints."""
    lines = [*where(dumps), *where_children(dumps)]
    lines += [line for one in dumps for line in _about(one)]
    threads = [one for each in dumps for one in _threads(each)]
    shown: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for thread, of in threads:
        if not _is_own(thread):
            key = thread.name != MAIN, thread.frames
            shown.setdefault(key, []).append(_thread_of(thread, of))
    for (_, frames), owners in sorted(shown.items(), key=lambda one: (one[0][0], len(one[1]))):
        lines += ["", some_of(owners), *(f"    {frame}" for frame in frames)]
    if own := len(threads) - sum(map(len, shown.values())):
        lines += ["", f"left out: {counted(own, 'thread')} of dynprof; --json prints all"]
    return lines


def _about(dump: StackDump) -> Iterator[str]:
    """Yield lines on one rank: when it was read, and what is not shown."""
    named, process = rank_in_words(dump.role, dump.rank), dump.process
    by = f"read at {local(dump.taken_at)[:8]} by {dump.taken_by}"
    step = f"step {dump.step:,}"
    if dump.heard_at:
        step += f" at {local(dump.heard_at)[:8]}, when it was last heard"
    yield f"{named}: {step}, process {process.pid} on {dump.host}, {by}"
    if dump.silent:
        yield f"{named} {dump.silent}"
    for text in dump.collectives:
        yield f"{named}: {text}"
    for one in (process, *dump.children):
        of = owner_of(dump, one)
        if one.why_none:
            yield f"{of} has no stacks: {one.why_none}"
        if one.left_out:
            yield f"{of}: {counted(one.left_out, 'more thread')} not shown"
    if dump.children_left_out:
        yield f"{named}: {counted(dump.children_left_out, 'more child', 'more children')} not shown"


def _threads(dump: StackDump) -> Iterator[tuple[ThreadStack, str]]:
    """Yield the threads of a rank and its children, each with its process in words."""
    for one in (dump.process, *dump.children):
        for thread in one.threads:
            yield thread, owner_of(dump, one)


def _is_own(thread: ThreadStack) -> bool:
    """Return whether a thread is dynprof's, or the package's that reports changes of the config."""
    own = f"{os.sep}watchdog{os.sep}observers{os.sep}"
    return thread.name.startswith("dynprof-") or any(own in frame for frame in thread.frames)


def _thread_of(thread: ThreadStack, of: str) -> str:
    gil = ", which holds the GIL" if thread.holds_gil else ""
    return f"{thread.name or 'a thread'} of {of}{gil}"
