"""What a trace still tells where its file ends before its events do.

Kineto writes the host's events first, thread by thread, and behind them what devices did, in the
order in which it got the buffers, which is none of time: what is cut off may belong to any step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.reading.categories import (
    CALLS,
    FRAMES,
    LABELS,
    LAUNCHES,
    ON_DEVICE,
    OPERATORS,
)
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.trace import Trace
    from dynprof.captures.manifest import Manifest

_OF_THE_HOST = OPERATORS | LABELS | FRAMES | CALLS


class Truncation:
    """Where a trace ends too early, and what is not known for that.

    Args:
        trace: The trace.
        manifest: Who recorded it, where that is known.
        marked: The steps that it still marks.

    Attributes:
        host_incomplete: Whether what the host did is not all there.
        devices_incomplete: Whether devices did, or may have done, what is not there.
        whole: The steps of which everything that the host did is there.
    """

    def __init__(self, trace: Trace, manifest: Manifest | None, marked: list[MarkedStep]) -> None:
        self._truncated, self._repaired = trace.torn, trace.mended
        self.host_incomplete = not trace.complete and _ends_on_host(trace)
        self.devices_incomplete = not trace.complete and _may_have_devices(trace, manifest)
        self.complete_steps = [] if self.host_incomplete else marked

    @property
    def incomplete(self) -> bool:
        """Whether of any step something may be missing."""
        return self.host_incomplete or self.devices_incomplete

    def sentences(self) -> list[str]:
        """Return what is missing, in sentences."""
        found = []
        names, first = self._repaired
        if names:
            found.append(
                f"{counted(names, 'name')} in the trace had to be repaired: a quote or backslash "
                f"there is not escaped, so that the file is no JSON from byte {first:,} on; all "
                "events were read."
            )
        if self._truncated:
            found.append(
                f"{self._truncated[0].upper()}{self._truncated[1:]}; what there is was analysed."
            )
        if self.host_incomplete:
            found.append(
                "Traces hold one thread after the other: some may be missing from any step, so "
                "that no step is taken for whole, and none is judged."
            )
        elif self.devices_incomplete:
            found.append(
                "Kineto writes what devices did behind what the host did, and in no order of time: "
                "some of it may be missing from any step, so that none is judged."
            )
        return found


def _ends_on_host(trace: Trace) -> bool:
    """Return whether the file ends among the events of the host."""
    if trace.last < 0:
        return True
    category = trace.tables["category"][trace.spans["category"][trace.last]]
    return category.lower() in _OF_THE_HOST


def _may_have_devices(trace: Trace, manifest: Manifest | None) -> bool:
    """Return whether a device was recorded, as far as the file goes, or cannot be ruled out."""
    if trace.category(ON_DEVICE, LAUNCHES).any():
        return True
    if manifest is not None:
        return any(name != "CPU" for name in manifest.activities)
    if trace.category(CALLS).any():  # VizTracer's
        return False
    return trace.members.get("deviceProperties") != []  # a Kineto that knows of none says so
