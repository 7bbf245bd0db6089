"""The manifest of a window that was just closed, as far as it is known then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.clock import iso
from dynprof.process.rank import UNKNOWN
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.windows.open_window import OpenWindow
    from dynprof.windows.this_process import ThisProcess
    from dynprof.windows.window import Window


def window_manifest(
    current: OpenWindow, process: ThisProcess, *, reason: str, close_ms: float, closed_wall_s: float
) -> Manifest:
    """Return the manifest of a window that was just closed, as far as it is known then.

    Args:
        current: The window.
        process: This process.
        reason: Why it is not complete; empty where it is.
        close_ms: Time that closing took.
        closed_wall_s: Time of closing, seconds since the epoch.
    """
    window, request = current.window, current.request
    root = str(process.layout.root)
    seconds = window.durations_s
    during_ms = round(sum(seconds) / len(seconds) * 1e3, 4) if seconds else None
    return Manifest(
        dynprof=__version__,
        backend=current.backend.name,
        versions=dict(current.backend.versions()),
        host=process.layout.host,
        pid=process.layout.pid,
        rank=process.rank.number,
        world_size=process.rank.world_size,
        rank_source="" if process.rank.source == UNKNOWN else process.rank.source,
        directory=root if root.isprintable() else "",  # a manifest is UTF-8, names are any bytes
        request=RequestRecord(
            number=request.number,
            edited_at=iso(request.edited_at_s),
            sha256=request.sha256,
            config=request.config.to_json(),
        ),
        steps=Steps(
            first=window.first,
            last=window.last,
            recorded=window.recorded,
            warmup=window.warmup,
            source=current.steps_from,
        ),
        activities=current.activities,
        opened_at=iso(current.opened_wall_s),
        closed_at=iso(closed_wall_s),
        complete=not reason,
        reason=reason,
        closing=current.closing,
        remarks=(*map(str, request.remarks), *current.remarks, *_gaps(window)),
        cost=Cost(
            open_ms=round(current.open_ms, 3),
            close_ms=round(close_ms, 3),
            step_before_ms=current.step_before_ms and round(current.step_before_ms, 4),
            step_during_ms=during_ms,
            events=current.load.events or None,
        ),
    )


def _gaps(window: Window) -> Iterator[str]:
    """Yield a remark on recorded steps whose numbers do not follow each other."""
    numbers = window.numbers[: window.recorded]
    if numbers and numbers[-1] - numbers[0] != len(numbers) - 1:
        yield f"the recorded steps are {', '.join(map(str, numbers))}"
