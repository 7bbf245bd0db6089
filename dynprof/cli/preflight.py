"""Predicts a job's answer to a config, from the job's last status and without the job."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.cli.config_directory import statuses
from dynprof.requests.plan import ProcessState, Refusal, plan
from dynprof.runtime.destination import destination, split_urls
from dynprof.runtime.layout import Layout, free_disk_mb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.config import Parsed, ProfilerConfig
    from dynprof.journal.status import Status
    from dynprof.runtime.destination import Destination


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
