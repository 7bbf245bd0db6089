"""Puts the commands together. Each is loaded only when it runs, with what it imports."""

from __future__ import annotations

import functools
import importlib
import inspect
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from dynprof.errors import MissingExtraError
from dynprof.runtime.error_boundary import ended_by_interrupt
from dynprof.version import __version__

NARROW_COLUMNS = 60
"""On fewer columns the framed tables of the help would cut the names of options: it goes plain."""
_COLUMNS = shutil.get_terminal_size().columns
_MARKUP: Literal["rich"] | None = None if _COLUMNS < NARROW_COLUMNS else "rich"
_SETTINGS = {"terminal_width": _COLUMNS} if _COLUMNS < NARROW_COLUMNS else {}
COMMANDS = {
    "run": "Run a job so that it watches a config, as if its script called dp.init() and"
    " dp.step().",
    "attach": "Have a running process watch a config, though its script knows nothing of dynprof.",
    "detach": "Take out of a process what dynprof attach has put in; an open window is saved"
    " first.",
    "init": "Make the directory, the config and its schema, where they are not there yet.",
    "validate": "Check a config and name every problem with its line and JSON pointer.",
    "arm": "Change the config's settings and save it: a running job records its next steps.",
    "cancel": "Close the open window, keeping what it has, and disarm the waiting one.",
    "status": "Show where every rank stands: its health, step, request and last capture.",
    "log": "Print the maintenance logs of all ranks, merged by time.",
    "analyse": "Make a report, tables, a database, stacks and memory timelines from captures.",
    "report": "Write one page about a capture: where a step goes, what to try, and all behind it.",
    "top": "Print the operators of a capture, those with the most time of their own first.",
    "diff": "Compare two captures, windows, ranks or runs: what costs a step more, and what less.",
    "merge": "Write one trace of the ranks of the newest window, for Perfetto.",
    "view": "Open a trace in Perfetto's viewer, without the network, until Ctrl-C.",
    "mstx": "Say where the library of C marks and its header lie, and how to use them.",
    "env": "Say whether jobs of this Python look at DYNPROF_CONFIG, and switch that on or off.",
    "demo": "Train a small model, edit its config from here while it runs, and show what came of"
    " it.",
}
"""Each command, in the order of the help, with the first paragraph of its docstring."""
_MODULES = {"detach": "attach", "cancel": "arm"}
"""The module of a command that has none of its own name."""


class _Command(TyperCommand):
    """Shows no ``<bool>`` behind ``--help``, which takes no value."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option that Typer adds."""
        if option := super().get_help_option(ctx):
            option.metavar = ""
        return option

    def invoke(self, ctx: Any) -> Any:
        """Run it; what it needs and is not installed ends it with the command that installs it."""
        try:
            return super().invoke(ctx)
        except MissingExtraError as error:
            from dynprof.cli.outcome import UNREADABLE, fail

            fail(str(error), UNREADABLE)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its options and arguments."""
        return _skip_conversion(super().get_params(ctx))


def _skip_conversion(parameters: list[Any]) -> list[Any]:
    """Have options that are not given, and a directory, taken without Typer's conversion.

    Typer 0.29 loads pydantic for it: a third of the time of ``status``.
    """
    for parameter in parameters:
        parameter.process_value = functools.partial(_process_value, parameter)
    return parameters


def _process_value(parameter: Any, ctx: Any, value: Any) -> Any:
    """Return a parameter's value for the command, as click's ``process_value``."""
    if value is None and not (parameter.required or parameter.multiple):
        plain = None
    elif parameter.name == "directory" and isinstance(value, str):
        plain = Path(value)
    else:
        return type(parameter).process_value(parameter, ctx, value)
    return parameter.callback(ctx, parameter, plain) if parameter.callback else plain


class _Listed(TyperCommand):
    """What the help of all commands shows of one; its options are loaded when it is called."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Parse the command line of the command itself."""
        return _load(str(self.name)).make_context(*arguments, **named)


def _load(name: str) -> Any:
    """Import a command, and return it with its options."""
    with ended_by_interrupt():
        module = importlib.import_module(f"dynprof.cli.{_MODULES.get(name, name)}")
    command = getattr(module, name)
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    single = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=_MARKUP
    )
    single.command(
        name,
        cls=_Command,
        help="\n\n".join(" ".join(text.split()) for text in paragraphs),
        context_settings=getattr(module, "CONTEXT_SETTINGS", None),
    )(command)
    return typer.main.get_command(single)


class _Group(TyperGroup):
    """Knows the commands by name; shows no ``<bool>`` behind options that take no value."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, text in COMMANDS.items():
            self.add_command(_Listed(name, help=text, rich_markup_mode=_MARKUP))

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its options, and those of completion."""
        found = _skip_conversion(super().get_params(ctx))
        for option in found:
            option.metavar = ""
        return found


app = typer.Typer(
    name="dynprof",
    cls=_Group,
    help="Profile the next N steps of a training job that is already running.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=_MARKUP,
    context_settings=_SETTINGS,
)


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
