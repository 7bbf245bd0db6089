"""Puts the commands together."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from dynprof.cli.analyse import analyse
from dynprof.cli.arm import arm, cancel
from dynprof.cli.attach import attach, detach
from dynprof.cli.demo import demo
from dynprof.cli.diff import diff
from dynprof.cli.env import env
from dynprof.cli.init import init
from dynprof.cli.log import log
from dynprof.cli.merge import merge
from dynprof.cli.mstx import mstx
from dynprof.cli.report import report
from dynprof.cli.run import PASSED_ON, run
from dynprof.cli.status import status
from dynprof.cli.top import top
from dynprof.cli.validate import validate
from dynprof.cli.view import view
from dynprof.version import __version__

NARROW = 60
"""On fewer columns the framed tables of the help would cut the names of options: it goes plain."""
_COLUMNS = shutil.get_terminal_size().columns


class _Command(TyperCommand):
    """Shows no ``<bool>`` behind ``--help``, which takes no value."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option that Typer adds."""
        if option := super().get_help_option(ctx):
            option.metavar = ""
        return option


class _Group(TyperGroup):
    """Neither behind its own, nor behind those of completion."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its options."""
        found = super().get_params(ctx)
        for option in found:
            option.metavar = ""
        return found


app = typer.Typer(
    name="dynprof",
    cls=_Group,
    help="Profile the next N steps of a training job that is already running.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None if _COLUMNS < NARROW else "rich",
    context_settings={"terminal_width": _COLUMNS} if _COLUMNS < NARROW else None,
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    run, attach, detach, init, validate, arm, cancel, status, log, analyse, report, top, diff,
    merge, view, mstx, env, demo,
)  # fmt: skip
for _command in _COMMANDS:
    _paragraphs = (inspect.getdoc(_command) or "").split("\n\n")
    app.command(
        cls=_Command,
        help="\n\n".join(" ".join(text.split()) for text in _paragraphs),
        context_settings=PASSED_ON if _command is run else None,
    )(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dynprof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            help="Print the version.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    del version
