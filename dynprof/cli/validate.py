"""``dynprof validate FILE``: print what a job would answer to a config, without a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import each_rank, live, path_argument, ranks_of, why_unwatched
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.cli.preflight import predict_answer
from dynprof.config import ProfilerConfig, parse_config, read_source
from dynprof.errors import ConfigError
from dynprof.runtime.layout import CONFIG_NAME
from dynprof.runtime.plural import counted
from dynprof.runtime.safe_open import is_trusted_link

if TYPE_CHECKING:
    from collections.abc import Iterator


def validate(
    file: Annotated[
        Path,
        typer.Argument(
            help="The config file, or its directory.",
            show_default=False,
            callback=path_argument,
        ),
    ],
) -> None:
    """Check a config and print every problem with its line and JSON pointer.

    Exit code 0: it is valid. 1: it is not, or a job would refuse it. 2: there is no such file.

    Example: dynprof validate prof_config/profiler_config.json
    """
    path = file / CONFIG_NAME if file.is_dir() else file
    try:
        follow = is_trusted_link(path) and any(one.follow_symlinks for one in live(path.parent))
        parsed = parse_config(read_source(path, follow_symlinks=follow).raw)
    except FileNotFoundError:
        fail(f"{path}: there is no such file", UNREADABLE)
    except ConfigError as error:
        for problem in error.problems:
            say(f"{path}: {problem}")
        count = counted(len(error.problems), "problem")
        say(f"{path}: {count}; a running job would ignore this file")
        raise typer.Exit(INVALID) from None
    refused = False
    for text, is_refusal in predict_answer(parsed, path):
        refused = refused or is_refusal
        say(f"{path}: {text}")
    if refused:
        say(f"{path}: well formed, but a job would refuse it")
        raise typer.Exit(INVALID)
    for text in _meaning(parsed.config):
        say(f"{path}: {text}")
    _print_requested_ranks(parsed.config, path.parent)


def _print_requested_ranks(config: ProfilerConfig, directory: Path) -> None:
    there = live(directory)
    if not there:
        say(why_unwatched(directory))
    elif not config.cancel and not any(
        config.selected_ranks.may_include(status.rank) for status in there
    ):
        say(f"no running rank matches its ranks (running: {ranks_of(there, each_rank)})")


def _meaning(config: ProfilerConfig) -> Iterator[str]:
    """Yield what a save would request; for a cancel also what it means after another cancel."""
    if not config.cancel:
        yield f"valid; requests {_request(config)}"
        return
    yield "valid; cancels the open or waiting window"
    again = 'if the save before it had "cancel": true as well, and another setting has changed'
    yield f"{again} since, it cancels nothing but requests {_request(config)}"


def _request(config: ProfilerConfig) -> str:
    start = f"from step {config.named_step}" if config.named_step else "from the next step"
    if config.multiple > 1:
        start = f"from the {config.start_step}"
    warmup = f" after {config.warmup} of warm-up" if config.warmup else ""
    return f"{counted(config.active, 'step')} {start}{warmup}, ranks {config.selected_ranks}"
