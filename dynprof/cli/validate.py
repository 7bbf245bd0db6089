"""``dynprof validate FILE``: what a job would say of this file, without saving it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import each_rank, live, nobody, owned_argument, ranks_of
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.cli.preflight import foretold
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
            help="The config, or the directory that holds it.",
            show_default=False,
            callback=owned_argument,
        ),
    ],
) -> None:
    """Check a config and name every problem with its line and JSON pointer.

    Exit code 0: it can be used; 1: it cannot; 2: there is no such file.

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
    for text, is_refusal in foretold(parsed, path):
        refused = refused or is_refusal
        say(f"{path}: {text}")
    if refused:
        say(f"{path}: well formed, but a job would refuse it")
        raise typer.Exit(INVALID)
    for text in _meaning(parsed.config):
        say(f"{path}: {text}")
    _tell_who_is_asked(parsed.config, path.parent)


def _tell_who_is_asked(config: ProfilerConfig, directory: Path) -> None:
    there = live(directory)
    if not there:
        say(nobody(directory))
    elif not config.cancel and not any(
        config.selected_ranks.may_include(status.rank) for status in there
    ):
        say(f"no rank that is running is asked (running: {ranks_of(there, each_rank)})")


def _meaning(config: ProfilerConfig) -> Iterator[str]:
    """Yield what a save asks for; of a cancel also what it is after another one."""
    if not config.cancel:
        yield f"valid; asks for {_request(config)}"
        return
    yield "valid; cancels the open or waiting window"
    again = 'if the save before it had "cancel": true as well, and another setting has changed'
    yield f"{again} since, it cancels nothing: it asks for {_request(config)}"


def _request(config: ProfilerConfig) -> str:
    start = f"from step {config.named_step}" if config.named_step else "from the next step"
    if config.multiple > 1:
        start = f"from the {config.start_step}"
    warmup = f" after {config.warmup} of warm-up" if config.warmup else ""
    return f"{counted(config.active, 'step')} {start}{warmup}, ranks {config.selected_ranks}"
