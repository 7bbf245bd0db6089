"""What a report says of the capture itself: what it is of, and what it cost the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.plural import number, spanned

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.captures.manifest import Cost, Manifest

NOT_MEASURABLE = "not measurable"
"""Stands for a cost that the scatter of the steps hides."""


def about(measured: MeasuredTrace) -> list[tuple[str, str]]:
    """Return facts about the capture: what it is of, and what it cost."""
    found = [
        ("file", measured.path.name),
        ("rank", str(measured.rank)),
        ("host", measured.host),
        ("events", f"{len(measured.trace.spans['start']):,}"),
        ("trace", f"{_size(measured.trace.size)} uncompressed"),
    ]
    if measured.manifest:
        found += _recorded(measured.manifest)
    return [(name, value) for name, value in found if value]


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def _recorded(manifest: Manifest) -> list[tuple[str, str]]:
    steps, cost = manifest.steps, manifest.cost
    measured = {
        "opening": cost.open_ms,
        "closing": cost.close_ms,
        "saving, beside the training": cost.save_ms,
        "a step before": cost.step_before_ms,
        "a step while recording": cost.step_during_ms,
        "a step after": cost.step_after_ms,
    }
    return [
        ("recorded", f"{number(steps.recorded)} of {spanned(steps.first, steps.last)}"),
        ("by", ", ".join((manifest.backend, *manifest.activities))),
        ("versions", ", ".join(f"{name} {value}" for name, value in manifest.versions.items())),
        ("from", manifest.opened_at),
        ("to", manifest.closed_at),
        *((name, ms(value * 1e6)) for name, value in measured.items() if value is not None),
        ("lost by the job in all", _lost(manifest.cost)),
    ]


def _lost(cost: Cost) -> str:
    """Return what a capture cost in all; nothing where that has not been counted yet."""
    if cost.is_hidden:
        return NOT_MEASURABLE
    return "" if cost.extra_ms is None else ms(cost.extra_ms * 1e6)
