"""``dynprof status``: all ranks of a directory on one screen."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dynprof.cli.places import LIVE, NOBODY, Directory, directory_of, fail, health, nobody, statuses
from dynprof.journal import printable
from dynprof.plural import counted

if TYPE_CHECKING:
    from dynprof.snapshot import Status

REFRESH_S, PIPED_S = 0.5, 2.0
STYLES = {"dead": "bold red", "stuck": "bold yellow", "starting": "cyan", "stopped": "dim"}
MOST_RANKS = 64
"""More ranks than this are shown only if something is the matter with them."""


def status(
    directory: Directory,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it, until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print it for a script, one object for all ranks.")
    ] = False,
) -> None:
    """Show where every rank stands: its health, step, request and last capture.

    A rank is alive, starting (in its first step), stuck, dead or stopped.

    Exit code 0: some rank is alive; 2: there is no such directory; 3: no rank is alive.

    Example: dynprof status prof_config --watch
    """
    directory = directory_of(directory)
    if as_json:
        typer.echo(json.dumps(_plain(directory), indent=2))
    elif watch:
        _watch(directory)
    else:
        Console().print(screen(directory))
    if not any(health(found) in LIVE for found in statuses(directory)):
        fail(nobody(directory), NOBODY)


def _plain(directory: Path) -> dict[str, object]:
    return {
        "directory": str(directory),
        "ranks": [
            {**dataclasses.asdict(found), "health": health(found)} for found in statuses(directory)
        ],
    }


def _watch(directory: Path) -> None:
    console = Console()
    try:
        if not console.is_terminal:
            while True:
                console.print(screen(directory), "")
                time.sleep(PIPED_S)
        with Live(screen(directory), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(REFRESH_S)
                live.update(screen(directory), refresh=True)
    except KeyboardInterrupt:
        return


def screen(directory: Path) -> Group:
    """Return what is shown of a directory."""
    found = statuses(directory)
    shown = found if len(found) <= MOST_RANKS else [s for s in found if _is_odd(s)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("rank", "process", "health", "state", "step", "ms/step", "request"):
        table.add_column(title, justify="right" if title in ("step", "ms/step") else "left")
    for one in shown:
        table.add_row(*_cells(one))
    notes = [*_doubles(found), *(note for one in shown for note in _notes(one))]
    if len(shown) < len(found):
        notes.append(Text(f"{counted(len(found) - len(shown), 'more rank')}, idle", style="dim"))
    return Group(table, *notes)


def _doubles(found: list[Status]) -> list[Text]:
    counts = Counter(one.rank for one in found if health(one) in LIVE)
    text = "processes are rank {} here: two jobs share the directory, or their ranks are unknown"
    return [
        Text(f"{count} {text.format(rank)}; see init(rank=...)", style="bold red")
        for rank, count in counts.items()
        if count > 1
    ]


def _is_odd(status: Status) -> bool:
    return health(status) != "alive" or status.state != "idle" or bool(status.problems)


def _cells(status: Status) -> list[Text]:
    found = how = health(status)
    if found in ("stuck", "starting"):
        how = f"{found} for {status.stuck_s(time.time()):.0f} s"
    elif found == "dead":
        how = f"dead for {time.time() - status.heartbeat:.0f} s"
    state = status.state
    if status.progress:
        state += f" {status.progress[0]}/{status.progress[1]}"
    cells = (
        str(status.rank),
        f"{status.host}:{status.pid}",
        how,
        state,
        f"{status.step:,}",
        "" if status.step_ms is None else f"{status.step_ms:.1f}",
        str(status.request or ""),
    )
    style = STYLES.get(found, "")
    return [Text(printable(cell), style=style) for cell in cells]


def _notes(status: Status) -> list[Text]:
    notes = []
    if status.problems:
        notes += [("yellow", f"refused: {problem}") for problem in status.problems]
    if status.last_error:
        notes.append(("red", f"error: {status.last_error}"))
    if status.last_capture:
        notes.append(("green", f"last capture: {status.last_capture}"))
    return [Text(f"rank {status.rank}: {printable(text)}", style=style) for style, text in notes]
