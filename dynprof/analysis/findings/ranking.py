"""What costs a step time that it need not cost, the worst first, and what to try about it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.analysis.findings import device, host
from dynprof.analysis.findings.finding import (
    DELAYS,
    LEAST,
    OF_A_STEP,
    has_stacks,
    stacks_command,
)
from dynprof.analysis.findings.idle import IDLE_RULES
from dynprof.analysis.findings.outliers import outlier_findings
from dynprof.analysis.measures.critical_path.critical_path import (
    ALL_COMMUNICATION,
    ALL_COPIES,
    ALL_HOST,
    ALL_KERNELS,
)
from dynprof.analysis.measures.critical_path.parts import BETWEEN, LAUNCHING, PARTS, WAITING
from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.analysis.measures.timeline.launches import UNKNOWN

if TYPE_CHECKING:
    from dynprof.analysis.findings.finding import Finding
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown

_RULES = (
    host.data_loading, host.garbage, host.compiling, host.between_operators, host.small_operators,
    host.costliest, host.optimizer, host.checkpoint, device.exposed_communication,
    device.exposed_copies, device.memory, device.fusible_kernels, *IDLE_RULES,
)  # fmt: skip
"""Each looks for one thing."""
_DELAYS = tuple(PARTS[part] for part in (LAUNCHING, BETWEEN, WAITING))
"""The parts of the critical path in which a device could begin and does not."""


def all_findings(measured: MeasuredTrace) -> list[Finding]:
    """Return what is found in a trace: first in its outliers, then in its other steps.

    Where no stacks were recorded, the first that would name a line says which command names it.
    """
    if measured.tear.hides:
        return []
    usual = measured.usual
    found = [*outlier_findings(measured), *findings(usual, usual.breakdown)]
    place = next((place for place, one in enumerate(found) if one.by_line), None)
    if place is not None and not has_stacks(measured):
        named = f"To have lines named, record with stacks: {stacks_command(measured)}."
        found[place] = replace(found[place], advice=f"{found[place].advice} {named}")
    return found


def without_repeated_advice(found: list[Finding]) -> list[Finding]:
    """Return findings, in their final order, that do not repeat the advice right above them."""
    above = ["", *(one.advice for one in found)]
    return [
        replace(one, advice="As above.") if advice.startswith(one.advice) else one
        for advice, one in zip(above, found, strict=False)
    ]


def findings(measured: MeasuredTrace, steps: Breakdown) -> list[Finding]:
    """Return what was found, the worst first; nothing where something may be missing."""
    if measured.tear.hides:
        return []
    found = [finding for rule in _RULES if (finding := rule(measured, steps))]
    worst = sorted((f for f in found if f.badness >= LEAST), key=lambda f: -f.badness)
    return [_with_savings(f, measured, steps) if f.of == OF_A_STEP else f for f in worst]


def _with_savings(finding: Finding, measured: MeasuredTrace, steps: Breakdown) -> Finding:
    """Return a finding that says what a step, or the trace, would save at most."""
    most = finding.share * steps.length if finding.most < 0 else finding.most
    time = min(most, _on_path(finding.on_path, measured))
    less = f"{ms(time)} shorter at most"
    if time < 1:
        less = "no shorter, as something else lasts as long"
    saves = f"{finding.without} {steps.a_step} would be {less}."
    return replace(finding, saves=saves, of=steps.a_step)


def _on_path(what: str, measured: MeasuredTrace) -> float:
    """Return what the critical path has a step save without a thing; infinite if it cannot tell."""
    path = measured.critical_path
    if not what or path is None or path.on_host:
        return math.inf
    if what == DELAYS:
        return sum(time for part, time in path.parts().items() if part in _DELAYS)
    saved = {one.what: path.length - one.step for one in path.what_ifs}
    if what not in saved and what not in (ALL_COMMUNICATION, ALL_COPIES, ALL_HOST):
        what = ALL_KERNELS  # only the longest kernels are tried one by one
    told = (measured.launches.call != UNKNOWN).all()
    return saved.get(what, 0.0 if told else math.inf)
