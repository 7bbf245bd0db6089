"""``dynprof status``: show all ranks of a directory, or all watched jobs of this machine."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group

from dynprof.captures.deliveries import left_behind
from dynprof.cli.config_directory import (
    OptionalDirectory,
    by_role,
    directory_of,
    health,
    health_in_detail,
    in_json,
    missing_ranks,
    moment_of,
    ranks_of,
    remote_leader,
    statuses,
    step_of,
    why_unwatched,
    with_step_age,
)
from dynprof.cli.dump import places_of
from dynprof.cli.history import memory_lines, pace_lines
from dynprof.cli.outcome import NOT_WATCHED, STUCK, UNREADABLE, fail, say, say_skipped
from dynprof.cli.terminal_tables import UNLIMITED, Column, console, shortened, table, wrapped
from dynprof.journal.edit_outcomes import in_words
from dynprof.journal.stack_dump import why_silent
from dynprof.journal.status import LEADS, LIVE, RUNNING, stage_progress
from dynprof.runtime import fresh_interpreter
from dynprof.runtime.clock import local
from dynprof.runtime.destination import is_url
from dynprof.runtime.file_system import file_mount_problem
from dynprof.runtime.layout import (
    CONFIG_NAME,
    STATUS_DIR,
    host_name,
    pid_namespace,
    rank_in_words,
)
from dynprof.runtime.plural import counted, spanned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dynprof.captures.deliveries import LeftBehind
    from dynprof.journal.status import JobStatus, SlowStepStatus, Status
    from dynprof.launch.processes import Candidate, Watched

REFRESH_S, PIPED_S = 0.5, 2.0
"""Refresh interval of ``--watch`` on a terminal, and in a pipe."""
STYLES = {
    "dead": "bold red", "failed": "bold red", "stuck": "bold yellow", "unknown": "yellow",
    "starting": "cyan", "ending": "cyan", "stopped": "dim",
}  # fmt: skip
COLUMNS = (
    Column("rank", 0, left=True),
    Column("process", 4, min_width=12, left=True),
    Column("health", 1, left=True),
    Column("profiler", 2, min_width=14, left=True),
    Column("step", 3),
    Column("ms/step", 5),
    Column("request", 6, left=True),
)
MAX_RANKS = 64
"""Ranks above which only those that need attention are listed."""
MAX_UNSENT = 16
"""Unsent captures that are listed; ``--json`` lists all."""

SUSPECT_S = 60.0
"""Seconds after a slow step in which it may explain what the ranks do now."""
BAR_CELLS = 20
"""Width of the bar in cells."""
BLOCK, SHADE = "\N{FULL BLOCK}", "\N{LIGHT SHADE}"
PROCESS_COLUMNS = (
    Column("pid", 0),
    Column("directory", 1, min_width=16, left=True),
    Column("rank", 3),
    Column("health", 4, left=True),
    Column("step", 2),
    Column("ms/step", 5),
    Column("steps from", 7, min_width=12, left=True),
    Column("command", 6, min_width=16, left=True),
)
MAX_COMMAND_CELLS = 160
"""Maximum cells of a command line, also in a pipe; ``--json`` prints all of it."""
INTERPRETER_SCRIPT = f"/{'/'.join(Path(fresh_interpreter.__file__).parts[-3:])} "
"""End of the path of the script that starts the demo's job."""
OTHER_COLUMNS = (
    Column("pid", 0),
    Column("not watched", 1, min_width=16, left=True),
    Column("attaching", 3, left=True),
    Column("works in", 2, min_width=12, left=True),
)


def status(
    directory: OptionalDirectory = None,
    watch: Annotated[
        bool, typer.Option("--watch", metavar="", help="Refresh it until Ctrl-C.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print one JSON object for all ranks."),
    ] = False,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            metavar="",
            help="Without a directory: also show processes that attach could reach.",
        ),
    ] = False,
) -> None:
    """Show the state of every rank: its health, step, request and last capture.

    A rank is alive, starting (in its first step), stuck, ending (it waits for a capture), dead,
    failed (an exception ended its script) or stopped. It is unknown while the disk takes no status.
    If its session ended but its process still runs, it is exiting or unwatched. Without a
    directory, show all processes of this user on this machine that watch one.

    Exit code 0: some rank is alive, starting, ending or unknown, and none is stuck. 2: there is no
    such directory. 3: all are dead, failed, stopped, exiting or unwatched, or there
    is none. 7: a rank is stuck.

    Example: dynprof status prof_config --watch
    """
    if watch and as_json:
        fail("--json prints once and --watch repeats; give only one of them", UNREADABLE)
    if directory is None:
        _show_processes(as_json=as_json, every=every)
        return
    directory = directory_of(directory)
    say_skipped(directory / STATUS_DIR)
    if watch:
        _watch(directory)
    found = statuses(directory)
    if as_json:
        typer.echo(json.dumps(_as_json(directory, found), indent=2))
    elif not watch:
        _show(directory, found)
    if not any(health(one) in RUNNING for one in found):
        fail(why_unwatched(directory), NOT_WATCHED)
    if stuck := [one for one in found if health(one) == "stuck"]:
        what = f"{ranks_of(stuck)} {'is' if len(stuck) == 1 else 'are'} stuck"
        where = f": {places}" if (places := places_of(stuck, directory)) else ""
        fail(f"{what}{where}; dynprof dump {directory} shows all stacks", STUCK)


def _show(directory: Path, found: list[Status]) -> None:
    shown = console()
    shown.print(screen(found, shown.width, directory))
    if text := file_mount_problem(directory / CONFIG_NAME):
        say(text)
    left = _unsent_captures(directory, found)
    for one in left[:MAX_UNSENT]:
        say(f"no job sends the capture in {one.folder}; to send it, run {one.command}")
    if more := len(left[MAX_UNSENT:]):
        say(f"{counted(more, 'more capture is', 'more captures are')} not sent; --json lists all")


def _unsent_captures(directory: Path, found: list[Status]) -> list[LeftBehind]:
    """Return the captures that no job sends, also in scratch directories that jobs may use."""
    places = {Path(place) for one in found for place in one.prof_dirs if not is_url(place)}
    return left_behind(directory.resolve(), places)


def _as_json(directory: Path, found: list[Status]) -> dict[str, object]:
    moment = moment_of(found)
    return {
        "directory": str(directory),
        "moment": moment,
        "ranks": [in_json(one, moment) for one in found],
        "left_behind": [str(one.folder) for one in _unsent_captures(directory, found)],
    }


def _watch(directory: Path) -> None:
    from rich.live import Live

    shown = console()

    def now() -> Group:
        return screen(statuses(directory), shown.width, directory)

    try:
        if not shown.is_terminal:
            while True:
                shown.print(now(), "")
                time.sleep(PIPED_S)
        with Live(now(), console=shown, auto_refresh=False) as live:
            while True:
                time.sleep(REFRESH_S)
                live.update(now(), refresh=True)
    except KeyboardInterrupt:
        return


def screen(found: list[Status], width: int, directory: Path = Path()) -> Group:
    """Return the screen for the ranks of a directory, in lines of up to ``width`` cells."""
    many = len(found) > MAX_RANKS
    shown: list[Status] = []
    usual: list[Status] = []
    for one in found:
        (usual if many and not _needs_attention(one) else shown).append(one)
    styles = [STYLES.get(health(one), "") for one in shown]
    moment = moment_of(found)
    rows = [_cells(one, moment) for one in shown]
    ranks = table(with_step_age(COLUMNS, moment), rows, width, styles)
    alive = [one for one in found if health(one) in RUNNING]
    jobs = [line for one in alive for line in job_lines(one)]
    followers = (remote_leader(those) for those in by_role(alive).values())
    jobs += [(text, "") for text in followers if text]
    notes = [*jobs, *_duplicate_ranks(found), *_fallbacks(alive), *_suspects(alive)]
    notes += _first_death(found)
    notes += [(text, "yellow") for text in missing_ranks(found)]
    notes += [(text, "") for text in (*pace_lines(alive), *memory_lines(alive))]
    notes += _notes_of(shown, directory, told="\n".join(text for text, _ in jobs))
    if usual:
        steps = [step_of(one, moment) for one in usual]
        at = spanned(min(steps), max(steps))
        others = counted(len(usual), "more rank" if shown else "rank")
        notes.append((f"{others}, alive and idle, at {at}", "dim"))
    return Group(ranks, *(wrapped(text, width, style) for text, style in notes))


def _duplicate_ranks(found: list[Status]) -> list[tuple[str, str]]:
    counts = Counter(one.named for one in found if health(one) in LIVE)
    text = "processes report as {}: two jobs share the directory, or their ranks are unknown"
    return [
        (f"{count} {text.format(named)}; set init(rank=...)", "bold red")
        for named, count in counts.items()
        if count > 1
    ]


def _first_death(found: list[Status]) -> list[tuple[str, str]]:
    """Return which rank of each role died first, as far as another rank saw it."""
    first: dict[str, Status] = {}
    for one in sorted((one for one in found if one.death), key=lambda one: one.death_at):
        first.setdefault(one.role, one)
    text = "{} saw at {} that {}"
    return [
        (text.format(one.named, local(one.death_at), one.death), "bold red")
        for one in first.values()
    ]


def _fallbacks(alive: list[Status]) -> list[tuple[str, str]]:
    """Return the fallbacks with which windows are recorded, each with its ranks."""
    ranks: dict[str, list[Status]] = {}
    for one in alive:
        usable = [capable for capable in one.profilers if not capable.missing][:1]
        for text in (text for capable in usable for text in capable.fallbacks):
            ranks.setdefault(text, []).append(one)
    return [(f"{ranks_of(which)}: {text}", "yellow") for text, which in ranks.items()]


def _needs_attention(status: Status) -> bool:
    return health(status) != "alive" or status.state != "idle" or bool(_refused(status))


def _refused(status: Status) -> tuple[str, ...]:
    """Return the problems of the newest edit; a status keeps those of an earlier one."""
    is_newest = not status.edits or status.edits[-1].outcome == "refused"
    return status.problems if is_newest else ()


def _cells(status: Status, moment: float | None) -> list[str]:
    found = how = health_in_detail(status)
    if found in ("stuck", "starting"):
        how = f"{found} for {status.stuck_s(time.time()):,.0f} s"
    elif found in ("dead", "unknown"):
        how = f"{found} for {time.time() - status.heartbeat:,.0f} s"
    is_dead, recent_ms = found == "dead", status.recent_ms(time.time())
    state = "" if is_dead else status.state
    if state and status.progress:
        state += " {}/{}".format(*stage_progress(status))
    return [
        f"{status.role} {status.rank}".lstrip(),
        f"{status.host}:{status.pid}",
        how,
        state,
        f"{step_of(status, moment):,}{_last_heard(status)}",
        "" if is_dead or recent_ms is None else f"{recent_ms:.1f}",
        str(status.request or ""),
    ]


def _last_heard(status: Status) -> str:
    """Return when a silent rank was in its step; empty for others: the heading says it."""
    is_silent = health(status) in RUNNING and not status.writes(time.time())
    return f" at {local(status.heartbeat)[:8]}" if is_silent else ""


def _notes_of(shown: list[Status], directory: Path, told: str) -> list[tuple[str, str]]:
    """Return the notes on ranks; ranks with the same note share a line.

    Args:
        shown: The ranks.
        directory: That of the config.
        told: What is said of the whole job, problems of ranks among it.
    """
    ranks: dict[tuple[str, str], list[Status]] = {}
    for one in shown:
        notes = (*_notes(one, told), *_notes_on_captures(one, directory))
        for note in (*notes, *_watch_notes(one, directory)):
            ranks.setdefault(note, []).append(one)
    return [(f"{ranks_of(those)}: {text}", style) for (text, style), those in ranks.items()]


def _where_stuck(status: Status) -> str:
    """Return where a rank is stuck, as far as its status and the system show."""
    is_here = (status.host, status.pid_namespace) == (host_name(), pid_namespace())
    state = status.process_state() or ""
    if status.writes(time.time()) and state != "stopped":
        where = status.stuck_at or "no Python function"
        how = "runs, now in" if status.training_thread_runs else "is in"
        if status.waits_for:
            how = f"waits for {status.waits_for}, which computes, in"
        return f"still in step {status.step:,}; the training thread {how} {where}"
    hint = "; dynprof dump shows where it is" if is_here else ""
    return f"{why_silent(status, state)}{hint}"


def _notes(status: Status, told: str) -> list[tuple[str, str]]:
    """Return the notes on a rank, each with its style."""
    newest, refused = status.edits[-1] if status.edits else None, _refused(status)
    which = f"request {newest.number} refused: " if newest else "refused: "
    notes = [(which + problem, "yellow") for problem in refused if problem not in told]
    if newest and newest.outcome == "waiting" and newest.text:
        between = " " if newest.text.startswith("waits, ") else ": "
        notes.append((f"request {newest.number}{between}{newest.text}", "cyan"))
    if status.state == "sending":
        sent = [one for one in status.edits if one.outcome == "saving"]
        notes += [(f"request {one.number}: {one.text}", "cyan") for one in sent[:1]]
    if newest and newest.outcome == "failed":
        text = in_words(newest.outcome, newest.text)
        notes.append((f"request {newest.number} {text}", "red"))
    notes += _notes_on_health(status)
    if status.last_error:
        notes.append((f"error: {status.last_error}", "red"))
    return notes


def _notes_on_health(status: Status) -> list[tuple[str, str]]:
    """Return the notes on a step that does not end, and on the end of the process."""
    found, notes = health(status), []
    if found == "stuck" or (status.stuck_at and found in LIVE) or _last_heard(status):
        notes.append((_where_stuck(status), "yellow"))
    elif seconds := status.standing_s(time.time()):
        notes.append((f"no step has ended for {seconds:,.0f} s", "yellow"))
    if found == "ending":
        notes.append((status.ending, "cyan"))
    if found == "failed":
        notes.append((f"failed at {local(status.heartbeat)[:8]}: {status.failure}", "bold red"))
    return notes


def _notes_on_captures(status: Status, directory: Path) -> list[tuple[str, str]]:
    """Return the notes on captures that a rank will record again, and on its last one."""
    is_repeated = status.baselines and health(status) in LIVE
    notes = [(status.baselines, "cyan")] if is_repeated else []
    if last := status.last_capture:
        notes.append((f"last capture: {_place(last, directory)}", "green"))
        cuts = [one.cut for one in status.edits if one.capture == last and one.cut]
        notes += [(f"cut short: {cut}", "yellow") for cut in cuts]
    return notes


def _place(path: str, directory: Path) -> str:
    """Return a path or URL in a status, for a shell in which ``directory`` was given."""
    return path if is_url(path) or not path else str(directory / path)


def _watch_notes(status: Status, directory: Path) -> list[tuple[str, str]]:
    """Return what the watch for slow steps does and costs, and the last slow step."""
    watch = status.watch
    if watch is None or health(status) not in LIVE:
        return []
    limit = f"over {watch.limit_ms:,.0f} ms" if watch.limit_ms else "once their usual time is known"
    limit += " (step times vary)" if watch.is_limit_raised else ""
    text = f"watches for steps {limit}; the watch uses {watch.share_percent:.2g}% of one CPU "
    text += f"(limit {watch.budget_percent:g}%), a sample every {watch.interval_ms:,.0f} ms; "
    slow = counted(watch.slow_steps, "slow step")
    slow += f", {watch.records} recorded"
    slow += f", {watch.unexplained} without a known cause" if watch.unexplained else ""
    notes = [(f"{text}{slow}", "dim")]
    if last := watch.last:
        usual = f", {last.usual_ms:,.0f} ms is usual" if last.usual_ms else ""
        said = (
            f"slow step {last.step}, at {local(last.ended_at)[:8]}, took {last.ms:,.0f} ms{usual}"
        )
        said += f"; {last.text}"
        if last.record:
            # Of slow steps with the same cause and place, only the first has a record.
            alike = "" if f"_step_{last.step}_" in last.record else "record of a like step: "
            said += f" ({alike}{_place(last.record, directory)})"
        notes.append((said, "yellow"))
    return notes


def _suspects(alive: list[Status]) -> list[tuple[str, str]]:
    """Return which rank the others waited for in most of the recent slow steps.

    Only steps that most ranks know count. A single step may be measured wrongly on one rank.
    """
    roles: dict[str, dict[int, list[tuple[SlowStepStatus, Status]]]] = {}
    for one in alive:
        watch = one.watch
        for slow in (watch.last, *watch.earlier) if watch else ():
            if slow and one.heartbeat - slow.ended_at < SUSPECT_S:
                roles.setdefault(one.role, {}).setdefault(slow.step, []).append((slow, one))
    notes = []
    for steps in roles.values():
        most = max(map(len, steps.values()))
        known = [steps[step] for step in sorted(steps, reverse=True) if len(steps[step]) == most]
        found = [pair for ranks in known for pair in _suspect(ranks)]
        if found:
            named = Counter(suspect for suspect, _ in found).most_common(1)[0][0]
            newest = next(text for suspect, text in found if suspect == named)
            notes.append((newest, "bold yellow"))
    return notes


def _suspect(ranks: list[tuple[SlowStepStatus, Status]]) -> Iterator[tuple[str, str]]:
    """Yield the rank that worked while others waited for most of a slow step, and a message.

    If all ranks waited, the rank is empty.
    """
    waited = [one for slow, one in ranks if slow.waited_ms > (slow.ms - slow.usual_ms) / 2]
    slow, suspect = min(ranks, key=lambda pair: pair[0].waited_ms)
    if waited and suspect not in waited:
        text = f"slow step {slow.step}: {ranks_of(waited)} waited for {suspect.named}, which worked"
        yield suspect.named, f"{text} {slow.ms - slow.waited_ms:,.0f} ms; {slow.text}"
    elif len(waited) == len(ranks) > 1:
        text = f"slow step {slow.step}: {ranks_of(waited)} waited, and no rank worked longer"
        yield "", f"{text}: look at the link between them, or at a rank without a record"


def job_lines(leader: Status) -> list[tuple[str, str]]:
    """Return the lines about all ranks, each with its style."""
    job = leader.job
    if job is None or leader.agreement != LEADS:
        return []
    states = ", ".join(f"{count} {state}" for state, count in job.states.items())
    age = f", last report {time.time() - job.heard_at:,.0f} s ago" if job.heard_at else ""
    leads = f"{leader.named} leads {counted(job.ranks, 'rank')}"
    found = [(f"{leads}: {states or 'no report yet'}{age}", "")]
    if job.request:
        found.append((f"request {job.request}: {_window_progress(job)}", ""))
    late = job.stragglers.items()
    missing = [(f"{rank_in_words(leader.role, rank)}: {why}", "yellow") for rank, why in late]
    noticed = [(text, "yellow") for text in (*job.problems, *job.remarks)]
    return [*found, *noticed, *missing]


def _window_progress(job: JobStatus) -> str:
    if job.pending is None:
        return "waiting for the answers of the ranks"
    if job.problems:
        return "no rank opens"
    text = f"{job.saved:,} of {counted(job.asked, 'rank')} saved{job.unsaved_in_words}"
    if not job.pending:  # a bar would look unfinished
        return text
    full = round(BAR_CELLS * job.saved / job.asked) if job.asked else 0
    return f"{text} {BLOCK * full}{SHADE * (BAR_CELLS - full)}"


def _show_processes(*, as_json: bool, every: bool) -> None:
    """Print the processes of this user that watch a config; exit if there are none.

    Args:
        as_json: Print JSON.
        every: Include Python processes that watch no config.
    """
    from dynprof.launch.processes import candidates, watched_processes

    found = watched_processes()
    pids = {one.pid for one in found}
    others = [one for one in candidates() if one.pid not in pids] if every else []
    moment = moment_of([one.status for one in found if one.status])
    if as_json:
        unwatched = {"others": [_other_as_json(one) for one in others]} if every else {}
        plain = {
            "moment": moment,
            "processes": [_process_as_json(one, moment) for one in found],
            **unwatched,
        }
        typer.echo(json.dumps(plain, indent=2))
    else:
        shown = console()
        if found:
            rows = _with_short_commands(
                (_cells_of_process(one, moment) for one in found), shown.width
            )
            shown.print(table(with_step_age(PROCESS_COLUMNS, moment), rows, shown.width))
        if others:
            rows = _with_short_commands(map(_cells_of_other, others), shown.width, place=1)
            shown.print(table(OTHER_COLUMNS, rows, shown.width))
    if not found:
        text = "no process of this user on this machine watches a config"
        fail(f"{text}; use dynprof run, or dynprof attach for a running job", NOT_WATCHED)
    stuck = [one.pid for one in found if one.status and health(one.status) == "stuck"]
    if stuck:
        text = f"stuck: process {', '.join(map(str, stuck))}"
        fail(f"{text}; dynprof status {stuck[0]} shows where", STUCK)


def _with_short_commands(rows: Iterable[list[str]], width: int, place: int = -1) -> list[list[str]]:
    """Return rows with shortened commands; on a screen a command begins with its script."""
    found = list(rows)
    for row in found:
        command = short_command(row[place]) if width < UNLIMITED else row[place]
        row[place] = shortened(" ".join(command.split()), MAX_COMMAND_CELLS)
    return found


def short_command(command: str) -> str:
    """Return a command line that begins with the script; files are without their folders."""
    if INTERPRETER_SCRIPT in command:  # the job of the demo: its module and arguments
        return command.rpartition("} ")[2]
    words = command.split()
    if words and re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        del words[0]
    return " ".join(Path(word).name if word.startswith("/") else word for word in words) or command


def _other_as_json(one: Candidate) -> dict[str, Any]:
    told = {"pid": one.pid, "command": one.command, "folder": str(one.folder)}
    return {**told, "why_not": one.why_not}


def _cells_of_other(one: Candidate) -> list[str]:
    return [str(one.pid), one.command, one.why_not or "dynprof attach", str(one.folder)]


def _process_as_json(one: Watched, moment: float | None) -> dict[str, Any]:
    status = one.status
    said = in_json(status, moment) if status else None
    return {
        "pid": one.pid,
        "command": one.command,
        "directory": str(one.directory),
        "status": said,
    }


def _cells_of_process(one: Watched, moment: float | None) -> list[str]:
    status = one.status
    if status is None:
        return [str(one.pid), str(one.directory), "", "unknown", "", "", "", one.command]
    return [
        str(one.pid),
        str(one.directory),
        f"{status.role} {status.rank}".lstrip(),
        health(status),
        f"{step_of(status, moment):,}",
        "" if status.step_ms is None else f"{status.step_ms:.1f}",
        status.steps_from,
        one.command,
    ]
