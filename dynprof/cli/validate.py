"""``dynprof validate FILE``: what a job would say of this file, without saving it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dynprof.cli.config_directory import live, nobody
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.config import Parsed, ProfilerConfig, parse_config, read_source
from dynprof.errors import CaptureError, ConfigError
from dynprof.files.layout import CONFIG_NAME, STATUS_DIR, Layout, free_disk_mb, why_unusable
from dynprof.journal.status import Status, load_status
from dynprof.plural import counted, listed
from dynprof.requests.plan import Refusal, Standing, plan


def validate(
    file: Annotated[
        Path, typer.Argument(help="The config, or the directory that holds it.", show_default=False)
    ],
) -> None:
    """Check a config and name every problem with its line and JSON pointer.

    Exit code 0: it can be used; 1: it cannot; 2: there is no such file.

    Example: dynprof validate prof_config/profiler_config.json
    """
    path = file / CONFIG_NAME if file.is_dir() else file
    try:
        follow = any(status.follow_symlinks for status in live(path.parent))
        parsed = parse_config(read_source(path, follow_symlinks=follow).raw)
    except FileNotFoundError:
        fail(f"{path}: there is no such file", UNREADABLE)
    except ConfigError as error:
        for problem in error.problems:
            say(f"{path}: {problem}")
        say(f"{path}: {counted(len(error.problems), 'problem')}; a job would change nothing")
        raise typer.Exit(INVALID) from None
    refused = False
    for text, is_refusal in _sayings(parsed, path):
        refused = refused or is_refusal
        say(f"{path}: {text}")
    if refused:
        say(f"{path}: well formed, but a job would refuse it")
        raise typer.Exit(INVALID)
    say(f"{path}: valid; asks for {_wish(parsed.config)}")
    there = live(path.parent)
    if not there:
        say(nobody(path.parent))
    elif not parsed.config.cancel and not any(s.rank in parsed.config.asked_ranks for s in there):
        say(f"none that is there is asked ({listed('rank', [s.rank for s in there])})")


def _sayings(parsed: Parsed, path: Path) -> Iterator[tuple[str, bool]]:
    """Yield what is to be said of a well-formed config, and whether it is a refusal."""
    for remark in parsed.remarks:
        yield str(remark), False
    status = _asked_process(parsed.config, path.parent)
    if status is None or parsed.config.cancel:
        return
    allowed = tuple(map(Path, status.prof_dirs))
    layout = Layout.here(path.parent.resolve(), status.rank, prof_dirs=allowed)
    folder = layout.capture_dir(parsed.config.prof_dir)
    standing = Standing(
        step=status.step if status.is_live(time.time()) else -1,
        rank=status.rank,
        capabilities=status.profilers,
        free_disk_mb=free_disk_mb(folder),
        prof_dir_problem=layout.why_forbidden(folder) or why_unusable(folder),
    )
    outcome = plan(parsed.config, standing)
    refused = isinstance(outcome, Refusal)
    for problem in outcome.problems if isinstance(outcome, Refusal) else outcome.remarks:
        (located,) = parsed.locate([problem])
        yield f"{located} (rank {status.rank} on {status.host})", refused


def _asked_process(config: ProfilerConfig, directory: Path) -> Status | None:
    """Return the latest status beside the config of a rank that it asks for."""
    statuses = []
    for path in (directory / STATUS_DIR).glob("rank_*.json"):
        with contextlib.suppress(CaptureError):
            statuses.append(load_status(path))
    asked = [status for status in statuses if status.rank in config.asked_ranks]
    return max(asked, key=lambda status: status.heartbeat, default=None)


def _wish(config: ProfilerConfig) -> str:
    if config.cancel:
        return "the open or waiting window to be cancelled, if this save sets or repeats cancel"
    start = f"from step {config.start_step}" if config.start_step > 0 else "from the next step"
    warmup = f" after {config.warmup} of warm-up" if config.warmup else ""
    return f"{counted(config.active, 'step')} {start}{warmup}, ranks {config.asked_ranks}"
