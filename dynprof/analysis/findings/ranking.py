"""What costs a step time that it need not cost, the worst first, and what to try about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.analysis.findings import device, fusion, host
from dynprof.analysis.findings.finding import LEAST, OF_A_STEP
from dynprof.analysis.findings.idle import IDLE_RULES
from dynprof.analysis.measures.timeline.breakdown import ms

if TYPE_CHECKING:
    from dynprof.analysis.findings.finding import Finding
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown

_RULES = (
    host.data_loading, host.garbage, host.compiling, host.between_operators, host.small_operators,
    host.costliest, host.optimizer, host.checkpoint, device.exposed_communication,
    device.exposed_copies, device.memory, fusion.fusible_kernels, *IDLE_RULES,
)  # fmt: skip
"""Each looks for one thing."""


def findings(measured: MeasuredTrace, steps: Breakdown) -> list[Finding]:
    """Return what was found, the worst first; nothing where something may be missing."""
    if measured.tear.hides:
        return []
    found = [finding for rule in _RULES if (finding := rule(measured, steps))]
    worst = sorted((f for f in found if f.badness >= LEAST), key=lambda f: -f.badness)
    return [_with_savings(f, measured, steps) if f.of == OF_A_STEP else f for f in worst]


def _with_savings(finding: Finding, measured: MeasuredTrace, steps: Breakdown) -> Finding:
    """Return a finding that says what a step, or the trace, would save at most."""
    saves = finding.saves or _saves(finding, measured, steps)
    return replace(finding, saves=saves, of=steps.a_step)


def _saves(finding: Finding, measured: MeasuredTrace, steps: Breakdown) -> str:
    time, path = finding.share * steps.length, measured.critical_path
    if finding.on_path and path and not path.on_host:
        less = [path.length - one.step for one in path.what_ifs if one.what == finding.on_path]
        time = min([time, *less])
    return f"Without it {steps.a_step} would be {ms(time)} shorter at most."
