"""``dynprof validate FILE``: print what a job would answer to a config, without a job."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import (
    each_rank,
    live,
    path_argument,
    ranks_of,
    statuses,
    why_unwatched,
)
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.config import ProfilerConfig, parse_config, read_source
from dynprof.errors import ConfigError
from dynprof.requests.plan import ProcessState, Refusal, plan
from dynprof.runtime.destination import destination, split_urls
from dynprof.runtime.layout import CONFIG_NAME, Layout, free_disk_mb
from dynprof.runtime.plural import counted
from dynprof.runtime.safe_open import is_trusted_link

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.config import Parsed, ProfilerConfig
    from dynprof.journal.status import Status
    from dynprof.runtime.destination import Destination


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
    if config.watch.is_on:
        yield "watches for slow steps; a save that changes only watch requests no window"
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


def predict_answer(parsed: Parsed, path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the job's remarks on a valid config, each with whether it is a refusal.

    Args:
        parsed: The parsed config.
        path: The file.
    """
    for remark in parsed.remarks:
        yield str(remark), False
    status = _asked_process(parsed.config, path.parent)
    if status is None or parsed.config.cancel:
        return
    folders, urls = split_urls(status.prof_dirs)
    allowed = tuple(map(Path, folders))
    layout = Layout.here(path.parent.resolve(), status.rank, prof_dirs=allowed, urls=urls)
    place = destination(layout, parsed.config.prof_dir, parsed.config.storage.scratch_dir)
    state = ProcessState(
        step=status.step if status.is_live(time.time()) else -1,
        rank=status.rank,
        capabilities=status.profilers,
        free_disk_mb=free_disk_mb(place.staging_dir),
        prof_dir_problem=_why_not_writable(place, layout),
    )
    config = parsed.config
    if config.selected_ranks.chosen and status.agreement:  # the choice may be this rank
        config = config.model_copy(update={"ranks": [status.rank]})
    outcome = plan(config, state)
    refused = isinstance(outcome, Refusal)
    for fallback in () if isinstance(outcome, Refusal) else outcome.fallbacks:
        yield f"{fallback} ({status.named} on {status.host})", False
    for problem in outcome.problems if isinstance(outcome, Refusal) else outcome.remarks:
        (located,) = parsed.locate([problem])
        yield f"{located} ({status.named} on {status.host})", refused


def _why_not_writable(place: Destination, layout: Layout) -> str:
    """Return why a job cannot put captures there; only the job's user can check write access."""
    is_jobs_user = layout.root.stat().st_uid == os.geteuid()
    return place.why_not(layout) if is_jobs_user else place.why_forbidden(layout)


def _asked_process(config: ProfilerConfig, directory: Path) -> Status | None:
    """Return the latest status among the ranks that the config may ask."""
    asked = [
        status for status in statuses(directory) if config.selected_ranks.may_include(status.rank)
    ]
    return max(asked, key=lambda status: status.heartbeat, default=None)
