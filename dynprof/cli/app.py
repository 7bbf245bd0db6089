"""Puts the commands together."""

from __future__ import annotations

from typing import Annotated

import typer

from dynprof.cli.analyse import analyse
from dynprof.cli.arm import arm, cancel
from dynprof.cli.demo import demo
from dynprof.cli.diff import diff
from dynprof.cli.init import init
from dynprof.cli.log import log
from dynprof.cli.report import report
from dynprof.cli.status import status
from dynprof.cli.top import top
from dynprof.cli.validate import validate
from dynprof.cli.view import view
from dynprof.version import __version__

app = typer.Typer(
    name="dynprof",
    help="Profile the next N steps of a training job that is already running.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(init)
app.command()(validate)
app.command()(arm)
app.command()(cancel)
app.command()(status)
app.command()(log)
app.command()(analyse)
app.command()(report)
app.command()(top)
app.command()(diff)
app.command()(view)
app.command()(demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dynprof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    del version
