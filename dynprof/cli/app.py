"""The command line application. Each command is imported only when it runs."""

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
from dynprof.runtime.standard_streams import replace_unencodable
from dynprof.version import __version__

NARROW_COLUMNS = 60
"""Columns below which the help is plain: its frames would cut off option names."""
_COLUMNS = shutil.get_terminal_size().columns
_MARKUP: Literal["rich"] | None = None if _COLUMNS < NARROW_COLUMNS else "rich"
_SETTINGS = {"terminal_width": _COLUMNS} if _COLUMNS < NARROW_COLUMNS else {}
COMMANDS = {
    "run": "Run a job that watches a config, as if its script called dp.init() and dp.step().",
    "attach": "Make a running process watch a config, without a change to its script.",
    "detach": "Undo dynprof attach in a process; an open window is saved first.",
    "init": "Create the directory, the config and its schema, unless they exist.",
    "validate": "Check a config and print every problem with its line and JSON pointer.",
    "arm": "Change the config's settings and save it: a running job records its next steps.",
    "cancel": "Close the open window, keep what it has recorded, and cancel the waiting request.",
    "status": "Show the state of every rank: its health, step, request and last capture.",
    "log": "Print the logs of all ranks, merged by time.",
    "history": "Show the pace of all ranks since the job began, and when it changed.",
    "metrics": "Give the state of jobs as metrics to Prometheus or OpenTelemetry.",
    "dump": "Print what each rank executes: the Python stacks of its threads and child processes.",
    "analyse": "Make a report, tables, a database, stacks and memory timelines from captures.",
    "report": "Write an HTML page about a capture: where the time goes and what to try.",
    "top": "Print the operators of a capture, the one with the most device or self time first.",
    "diff": "Compare two captures, windows, ranks or runs: where a step takes more time, or less.",
    "trend": "Show how the time of a step changed over the baselines that a job keeps, and when.",
    "query": "Answer a SQL statement over captures: operators, kernels, steps, memory, ranks.",
    "merge": "Merge the ranks of the newest window into one trace, for Perfetto.",
    "view": "Open a trace in Perfetto's viewer, without the network, until Ctrl-C.",
    "mstx": "Print where the library of C marks and its header are, and how to use them.",
    "serve": "Show all jobs on a dashboard: which is unhealthy, and why; until Ctrl-C.",
    "mcp": "Answer an agent's questions about jobs, over the Model Context Protocol on stdio.",
    "env": "Show whether jobs of this Python read DYNPROF_CONFIG, and switch that on or off.",
    "demo": "Train a small model, edit its config while it runs, and show the result.",
}
"""The commands in the order of the help, each with the first paragraph of its docstring."""
_MODULES = {
    "detach": "attach",
    "cancel": "arm",
    "merge": "report",
    "mcp": "serve",
    "demo": "demo.command",
}
"""The module of each command that is not in a module of its own name."""


class _Command(TyperCommand):
    """A command whose help shows no ``<bool>`` after ``--help``, which takes no value."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the ``--help`` option that Typer adds."""
        if option := super().get_help_option(ctx):
            option.metavar = ""
        return option

    def invoke(self, ctx: Any) -> Any:
        """Run the command; if a package is missing, print how to install it and exit."""
        try:
            return super().invoke(ctx)
        except MissingExtraError as error:
            from dynprof.cli.outcome import UNREADABLE, fail

            fail(str(error), UNREADABLE)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        return _skip_conversion(super().get_params(ctx))


def _skip_conversion(parameters: list[Any]) -> list[Any]:
    """Skip Typer's conversion for absent options and for directories.

    Typer 0.29 loads pydantic for it, which takes a third of the time of ``status``.
    """
    for parameter in parameters:
        parameter.process_value = functools.partial(_process_value, parameter)
    return parameters


def _process_value(parameter: Any, ctx: Any, value: Any) -> Any:
    """Return a parameter's value, like click's ``process_value``."""
    if value is None and not (parameter.required or parameter.multiple):
        plain = None
    elif parameter.name == "directory" and isinstance(value, str):
        plain = Path(value)
    else:
        try:
            return type(parameter).process_value(parameter, ctx, value)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, of Typer 0.29
            raise
    return parameter.callback(ctx, parameter, plain) if parameter.callback else plain


class _Listed(TyperCommand):
    """An entry in the list of commands; its options are loaded when it is called."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Load the command and parse its command line."""
        return _load(str(self.name)).make_context(*arguments, **named)


def _load(name: str) -> Any:
    """Import a command and return it with its options."""
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
    """The group of all commands; shows no ``<bool>`` after options that take no value."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, text in COMMANDS.items():
            self.add_command(_Listed(name, help=text, rich_markup_mode=_MARKUP))

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, including those of shell completion."""
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
    replace_unencodable()
