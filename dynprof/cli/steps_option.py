"""The option ``--step-on`` of the commands that have a job watch a config."""

from __future__ import annotations

from typing import Annotated

import typer

from dynprof.cli.outcome import INVALID, fail
from dynprof.steps.wish import Wish, wished

StepOn = Annotated[
    str | None,
    typer.Option(
        "--step-on",
        metavar="SOURCE",
        help="What ends a step: optimizer, package.module:function, a period as 5s.",
        show_default=False,
    ),
]


def check_step_on(step_on: str | None) -> None:
    """Fail where it, or without it the variable, names no source of steps."""
    try:
        wished(step_on, otherwise=Wish("auto"))
    except ValueError as error:
        fail(str(error).replace("steps=", "--step-on ", 1), INVALID)
