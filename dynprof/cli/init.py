"""``dynprof init``: create the directory and the config before a job does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynprof.cli.config_directory import live, path_argument
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.config.editing import write_starter_files
from dynprof.errors import ConfigError
from dynprof.runtime.layout import CONFIG_NAME
from dynprof.runtime.permissions import why_not_watched
from dynprof.runtime.plural import counted
from dynprof.runtime.safe_open import make_dir


def init(
    directory: Annotated[
        Path,
        typer.Argument(
            help="The directory to give to dp.init().", show_default=False, callback=path_argument
        ),
    ],
    activities: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Activities to record: CPU, CUDA, XPU, NPU. Default: all that the machine of the "
            "job has.",
        ),
    ] = "",
) -> None:
    """Create the directory, the config and its schema, unless they exist.

    A job creates them itself when it starts; use this to prepare them earlier.

    Exit code 0: they exist. 1: there is no such activity. 2: they cannot be created.

    Example: dynprof init prof_config --activities CPU,CUDA
    """
    if why := why_not_watched(directory):
        fail(why, UNREADABLE)
    try:
        make_dir(directory)
        wrote = write_starter_files(
            directory, tuple(part.strip() for part in activities.split(",") if activities)
        )
    except ConfigError as error:
        fail(f"--activities: {error}", INVALID)
    except OSError as error:
        fail(f"{directory} cannot be used: {error.strerror}", UNREADABLE)
    kept = f"exists already and was left as it is; dynprof validate {directory} checks it"
    say(f"{directory / CONFIG_NAME} {'was created' if wrote else kept}")
    if wrote and (watching := live(directory)):
        ranks = counted(len(watching), "live rank treats", "live ranks treat")
        say(f"{ranks} it as a request, and will record a step", err=True)
