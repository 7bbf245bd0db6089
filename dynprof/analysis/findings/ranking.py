"""What costs a step time that it need not cost, the worst first, and what to try about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.findings import device, fusion, host
from dynprof.analysis.findings.finding import LEAST
from dynprof.analysis.findings.idle import IDLE_RULES

if TYPE_CHECKING:
    from dynprof.analysis.findings.finding import Finding
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown

_RULES = (
    host.data_loading, host.garbage, host.compiling, host.between_operators, host.small_operators,
    host.costliest, host.optimizer, host.checkpoint, device.exposed_communication,
    device.memory, fusion.fusible_kernels, *IDLE_RULES,
)  # fmt: skip
"""Each looks for one thing."""


def findings(measured: MeasuredTrace, steps: Breakdown) -> list[Finding]:
    """Return what was found, the worst first; nothing where something may be missing."""
    if measured.tear.hides:
        return []
    found = [finding for rule in _RULES if (finding := rule(measured, steps))]
    return sorted((f for f in found if f.badness >= LEAST), key=lambda f: -f.badness)
