"""``dynprof log``: print the logs of all ranks, merged by time."""

from __future__ import annotations

import heapq
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dynprof.cli.config_directory import Directory, directory_of, other_config_hint
from dynprof.cli.numbers import at_least
from dynprof.cli.outcome import NOT_WATCHED, fail, say, say_skipped
from dynprof.journal.journal import printable
from dynprof.journal.log_reading import LINE, LogTail, SharedChanges, log_paths, rotated_paths
from dynprof.runtime.layout import LOG_DIR

POLL_S = 0.2
"""Seconds between two reads of the logs with ``--follow``."""
STYLES = {"WARNING": "yellow", "ERROR": "bold red"}


def log(
    directory: Directory,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", metavar="", help="Keep printing new records, until Ctrl-C."),
    ] = False,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines", "-n", parser=at_least(1), metavar="N", help="Print only the newest N."
        ),
    ] = None,
) -> None:
    """Print the logs of all ranks, merged by time.

    A change of the pace that several ranks have logged is printed once.

    Exit code 0: printed; 2: there is no such directory; 3: there is no log. ``--follow`` waits for
    one instead.

    Example: dynprof log prof_config --follow
    """
    directory = directory_of(directory)
    say_skipped(directory / LOG_DIR)
    paths = log_paths(directory)
    if not paths:
        text = f"there is no log in {directory / LOG_DIR}; no job has called dp.init() on it yet"
        text += other_config_hint(directory)
        if not follow:
            fail(text, NOT_WATCHED)
        say(f"{text}; waiting for one", err=True)
    console = Console(highlight=False, soft_wrap=True)
    tails = {path: LogTail(path) for path in paths}
    older = [LogTail(path).records() for path in rotated_paths(directory)]
    shared = SharedChanges()
    records = shared.fold(heapq.merge(*older, *(tail.records() for tail in tails.values())))
    for record in records[-lines:] if lines else records:
        _print(console, record)
    if follow:
        _follow(directory, console, tails, shared)


def _follow(
    directory: Path, console: Console, tails: dict[Path, LogTail], shared: SharedChanges
) -> None:
    try:
        while True:
            time.sleep(POLL_S)
            for path in log_paths(directory):
                tails.setdefault(path, LogTail(path))
            for record in shared.fold(heapq.merge(*(t.records() for t in tails.values()))):
                _print(console, record)
    except KeyboardInterrupt:
        return


def _print(console: Console, record: str) -> None:
    level = LINE.match(record)
    style = STYLES.get(level.group(1), "") if level else ""
    for line in record.split("\n"):
        console.print(Text(printable(line), style=style))
