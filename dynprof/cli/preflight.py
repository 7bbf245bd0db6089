"""What a job would say of a config: asked of its plan and its last status, not of the job."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.cli.config_directory import statuses
from dynprof.requests.plan import ProcessState, Refusal, plan
from dynprof.runtime.destination import destination, parted
from dynprof.runtime.layout import Layout, free_disk_mb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.config import Parsed, ProfilerConfig
    from dynprof.journal.status import Status
    from dynprof.runtime.destination import Destination


def foretold(parsed: Parsed, path: Path) -> Iterator[tuple[str, bool]]:
    """Yield what is to be said of a well-formed config, and whether it is a refusal.

    Args:
        parsed: The config, as it was read.
        path: Where it lies.
    """
    for remark in parsed.remarks:
        yield str(remark), False
    status = _asked_process(parsed.config, path.parent)
    if status is None or parsed.config.cancel:
        return
    folders, urls = parted(status.prof_dirs)
    allowed = tuple(map(Path, folders))
    layout = Layout.here(path.parent.resolve(), status.rank, prof_dirs=allowed, urls=urls)
    place = destination(layout, parsed.config.prof_dir, parsed.config.storage.scratch_dir)
    state = ProcessState(
        step=status.step if status.is_live(time.time()) else -1,
        rank=status.rank,
        capabilities=status.profilers,
        free_disk_mb=free_disk_mb(place.workshop),
        prof_dir_problem=_why_no_place(place, layout),
    )
    config = parsed.config
    if config.selected_ranks.chosen and status.agreement:  # it may be this one
        config = config.model_copy(update={"ranks": [status.rank]})
    outcome = plan(config, state)
    refused = isinstance(outcome, Refusal)
    for fallback in () if isinstance(outcome, Refusal) else outcome.fallbacks:
        yield f"{fallback} ({status.named} on {status.host})", False
    for problem in outcome.problems if isinstance(outcome, Refusal) else outcome.remarks:
        (located,) = parsed.locate([problem])
        yield f"{located} ({status.named} on {status.host})", refused


def _why_no_place(place: Destination, layout: Layout) -> str:
    """Say why a job cannot put captures there; what it may write is known to its own user only."""
    is_jobs_user = layout.root.stat().st_uid == os.geteuid()
    return place.why_not(layout) if is_jobs_user else place.why_forbidden(layout)


def _asked_process(config: ProfilerConfig, directory: Path) -> Status | None:
    """Return the latest status beside the config of a rank that it asks for."""
    asked = [
        status for status in statuses(directory) if config.selected_ranks.may_include(status.rank)
    ]
    return max(asked, key=lambda status: status.heartbeat, default=None)
