"""``dynprof analyse PATH``: make tables and reports from captures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import run_as_owner
from dynprof.cli.numbers import at_least
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, fail_for, say, say_skipped
from dynprof.cli.terminal_tables import progress_bar
from dynprof.errors import CaptureError, describe
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from dynprof.analysis.runs.many_traces import Outcome


class ExportType(StrEnum):
    """Format of the tables."""

    text = "text"
    db = "db"


class Workers(StrEnum):
    """What runs the analysis."""

    processes = "processes"
    dask = "dask"


def _path_argument(context: typer.Context, path: str) -> str:
    """Return a path or URL; for a local path, root's command runs again as its owner."""
    kind, _, rest = path.rpartition("://")
    if context.resilient_parsing or kind not in ("", "file", "local"):
        return path
    there = run_as_owner(Path(rest))
    return path if kind else str(there)


def analyse(
    path: Annotated[
        str,
        typer.Argument(
            help="A trace, a folder with captures, or a URL.",
            show_default=False,
            callback=_path_argument,
        ),
    ],
    export_type: Annotated[
        list[ExportType] | None,
        typer.Option(
            help="Format of the tables; give it twice for both. Default: as in the config."
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            parser=at_least(1),
            metavar="N",
            help="Maximum number of processes; default: one per CPU, fewer for small traces.",
        ),
    ] = None,
    executor: Annotated[Workers, typer.Option(help="What runs the analysis.")] = Workers.processes,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Address of the Dask scheduler, or its file.json."),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", metavar="", help="Say for each file that is not written, why."
        ),
    ] = False,
) -> None:
    """Make a report, tables, a database, stacks and memory timelines from captures.

    They are written to analysis/ next to each trace; the paths are printed. Exit code 0: all were
    written; 1: a capture cannot be read, the others were analysed; 2: there is no capture, or no
    Dask.

    Example: dynprof analyse prof_config --export-type text --export-type db
    """
    from dynprof.analysis.runs.executors import dask
    from dynprof.analysis.runs.one_trace import traces_in
    from dynprof.analysis.runs.remote_files import located
    from dynprof.analysis.vendor_files.left_out import NOT_REQUESTED

    if (executor is Workers.dask) != (scheduler is not None):
        fail("--executor dask and --scheduler ADDRESS go together", UNREADABLE)
    types = [kind.value for kind in export_type] if export_type else None
    try:
        there = located(path)
        say_skipped(there)
        traces = traces_in(there)
        outcome = _analyse_all(traces, types, processes, dask(scheduler) if scheduler else None)
    except (CaptureError, OSError) as error:
        fail(describe(error), UNREADABLE)
    if types:
        for reason in [one for one in outcome.left_out if one[1] in NOT_REQUESTED]:
            del outcome.left_out[reason]  # comes from the config, which the option overrides
    for made in sorted(outcome.made, key=str):
        say(made)
    _print_left_out(outcome, verbose=verbose)
    _print_remarks(outcome)


def _analyse_all(
    traces: list[Path],
    types: list[str] | None,
    processes: int | None,
    executor: AbstractContextManager[Executor] | None,
) -> Outcome:
    """Analyse the traces, with a progress bar if it takes long."""
    from dynprof.analysis.runs.many_traces import analyse_each

    with progress_bar("analysing", len(traces)) as done:
        return analyse_each(traces, types, processes=processes, executor=executor, on_end=done)


def _print_left_out(outcome: Outcome, *, verbose: bool) -> None:
    """Print which files are not written; only with ``verbose`` those that lack any content."""
    from dynprof.analysis.vendor_files.left_out import NOT_REQUESTED

    grouped: dict[tuple[str, int], list[str]] = {}
    others: set[str] = set()
    for (name, why), traces in outcome.left_out.items():
        if verbose or why in NOT_REQUESTED:
            grouped.setdefault((why, len(traces)), []).append(name)
        else:
            others.update(name.split(", "))
    for (why, count), names in grouped.items():
        say(f"not written: {', '.join(names)}: {why} ({counted(count, 'capture')})", err=True)
    if others:
        text = f"not written: {counted(len(others), 'file')} whose content was not recorded"
        say(f"{text}; --verbose names them", err=True)


def _print_remarks(outcome: Outcome) -> None:
    """Print what is known about ranks and damaged traces; exit if one cannot be read."""
    for folder, verdicts in outcome.verdicts.items():
        for verdict in verdicts:
            say(f"{folder}: {verdict}", err=True)
    for trace, truncated in outcome.truncated.items():
        say(f"{trace}: {truncated}", err=True)
    if outcome.problems:
        fail_for(outcome.problems, INVALID)
