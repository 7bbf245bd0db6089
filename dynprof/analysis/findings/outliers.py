"""Findings about steps that take far longer than the others of their window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.findings import device, host
from dynprof.analysis.findings.call_sites import (
    lines_named,
    main_place,
    self_time_openers,
    starters,
    starters_named,
)
from dynprof.analysis.findings.finding import Finding, has_stacks
from dynprof.analysis.findings.idle import IDLE_RULES
from dynprof.analysis.measures.critical_path import step_threads
from dynprof.analysis.measures.timeline.breakdown import MAX_NAMED, ms
from dynprof.analysis.measures.timeline.kernels import kinds, short_name
from dynprof.analysis.measures.timeline.operators import ITERATIONS, STEPS, averages
from dynprof.runtime.plural import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.steps import MarkedStep

_RULES = (
    host.data_loading, host.garbage, host.compiling, host.checkpoint, device.exposed_communication,
    device.exposed_copies, *IDLE_RULES, host.optimizer,
)  # fmt: skip
"""Rules that may explain a single long step. If several explain as much, the first is named."""
_AS_MUCH = 0.9
"""Share of the best cause from which another one explains as much."""
_EXPLAINS = 0.25
"""Share of the extra time of a step that a cause must explain."""
_MAX_FINDINGS = 2
"""Findings on outliers, at most: this leaves room for one on all steps."""
_FEW = 5
"""Steps below which an outlier comes after all other findings: one may be slow by chance."""


@dataclass(frozen=True)
class _Cause:
    """What a step spends more time on than the others.

    Attributes:
        finding: The finding on the step alone.
        time: The time that it takes, in ns.
        others: The time that it takes in the other steps on average, in ns.
    """

    finding: Finding
    time: float
    others: float

    @property
    def extra(self) -> float:
        """The time that it takes more, in ns."""
        return self.time - self.others


def outlier_findings(measured: MeasuredTrace) -> list[Finding]:
    """Return what makes the outliers long, the longest first.

    Outliers with the same cause in the same place share one finding. One that the profiler itself
    made long is left out: the verdict says so.
    """
    found: dict[tuple[str, str], tuple[Finding, list[MarkedStep]]] = {}
    for step in measured.outliers[:MAX_NAMED]:
        usual, extra = measured.others_like(step), _extra(measured, step)
        if measured.recording_ns(step) > extra / 2:
            continue
        causes = _causes(measured.only([step]), usual, extra)
        cause = (causes[0].finding.title, causes[0].finding.place) if causes else ("", "")
        found.setdefault(cause, (_finding_on(measured, step, extra, causes), []))[1].append(step)
    return [
        _combined(measured, *one, explained=any(cause))
        for cause, one in list(found.items())[:_MAX_FINDINGS]
    ]


def _extra(measured: MeasuredTrace, step: MarkedStep) -> float:
    """Return how much longer than the others a step took, in ns."""
    others = [measured.worked(one) for one in measured.others_like(step).marked]
    return measured.worked(step) - sum(others) / max(1, len(others))


def _finding_on(
    measured: MeasuredTrace, step: MarkedStep, extra: float, causes: list[_Cause]
) -> Finding:
    """Return the finding on one outlier."""
    label, noun = measured.iterations.get(step), measured.breakdown.noun
    others = f"the other {label.kind} {noun}s" if label else "the others"
    said = [f"It takes {ms(measured.took(step))}, {ms(extra)} more than {others}."]
    for cause in causes:
        stop = ". " if cause.finding.detail.startswith("It ") else ": "
        said.append(f"{cause.finding.title}{stop}{cause.finding.detail}")
        said.append(f"For the others that is {ms(cause.others)} on average.")
    if not causes:
        said.append("The trace does not show why.")
    return Finding(
        f"{noun.capitalize()} {step[0]} takes longer than {others}",
        0,
        " ".join(said),
        causes[0].finding.advice
        if causes
        else f"Look at {noun} {step[0]} of each thread with dynprof view.",
        of=f"all {noun}s",
        by_line=causes[0].finding.by_line if causes else True,
        at=step[1:],
    )


def _combined(
    measured: MeasuredTrace, first: Finding, steps: list[MarkedStep], *, explained: bool
) -> Finding:
    """Return the finding on the first of some outliers, with the cost of all of them.

    Args:
        measured: The trace.
        first: The finding on the first of them.
        steps: All of them.
        explained: Whether the trace shows why they are long.
    """
    extra = sum(_extra(measured, step) for step in steps)
    share = extra / sum(map(measured.took, measured.marked))
    each, count = extra / len(measured.marked), len(measured.marked)
    weight = each / measured.without_outliers.breakdown.length if count >= _FEW else 0.0
    numbers = [number for number, *_ in steps[1:]]
    same = "The main cause is the same in" if explained else "The cause is also unknown for"
    also = f" {same} {listed(measured.breakdown.noun, numbers)}." if numbers else ""
    few = f"It is one of {count} {measured.breakdown.noun}s. " if count < _FEW else ""
    return replace(
        first,
        share=share,
        weight=weight,
        detail=f"{few}{first.detail}{also}",
        saves=f"Without that, the average {measured.breakdown.noun} would be {ms(each)} shorter.",
    )


def _causes(alone: MeasuredTrace, usual: MeasuredTrace, extra: float) -> list[_Cause]:
    """Return what a step does more than the others: one cause, or two that do not overlap.

    Args:
        alone: The step alone.
        usual: The others.
        extra: How much longer it takes, in ns.
    """
    if len(step_threads(alone.trace)) > 1:
        return []  # other threads work on their steps, so more of anything happens in a long step
    found = [one for one in _candidates(alone, usual) if one.extra >= _EXPLAINS * extra]
    if not found:
        return []
    best = max(one.extra for one in found)
    first = next(one for one in found if one.extra >= _AS_MUCH * best)
    rest = [one for one in found if one is not first and one.extra <= extra - first.extra]
    return [first, *sorted(rest, key=lambda one: -one.extra)[:1]]


def _candidates(alone: MeasuredTrace, usual: MeasuredTrace) -> Iterator[_Cause]:
    """Yield possible causes of a long step; with stacks, functions before operators."""
    *pairs, between = [
        (rule(alone, alone.breakdown), rule(usual, usual.breakdown))
        for rule in (*_RULES, host.between_operators)
    ]
    growth = _longest_growth(alone, usual)
    last = (between, growth) if has_stacks(alone) else (growth, between)
    for here, there in (*pairs, *last):
        if here:
            others = there.share * usual.breakdown.length if there else 0.0
            yield _Cause(here, here.share * alone.breakdown.length, others)


def _longest_growth(
    alone: MeasuredTrace, usual: MeasuredTrace
) -> tuple[Finding | None, Finding | None]:
    """Return the name whose time grew most: its finding in this step and in the others."""
    steps, times, others = alone.breakdown, _mean_times(alone), _mean_times(usual)
    if not times:
        return None, None
    name = max(times, key=lambda one: times[one] - others.get(one, 0.0))
    chosen = host.work_of(alone, steps) & alone.trace.named(name.__eq__)
    if steps.on_host:
        found = self_time_openers(alone, steps, name, chosen)
        sites = f"{lines_named(found, times[name])}{_other_thread(alone, chosen)}."
    else:
        found = starters(alone, steps, chosen)
        sites = f".{starters_named(found)}"
    here = Finding(
        f"{name if steps.on_host else short_name(name)} takes longer",
        steps.share(times[name]),
        f"It takes {ms(times[name])} of {steps.a_step}{sites}",
        _about_inputs(alone, usual, name) if steps.on_host else _LONGER_ON_DEVICE,
        place=main_place(found),
    )
    share = usual.breakdown.share(others.get(name, 0.0))
    return here, replace(here, share=share)


_LONGER_ON_DEVICE = (
    "See whether it runs more often than in the others, or has larger inputs, and what runs on the "
    "device at the same time."
)


def _about_inputs(alone: MeasuredTrace, usual: MeasuredTrace, name: str) -> str:
    """Return what to look for if an operator is longer in a step, by the shapes of its inputs."""
    codes = [_inputs(one, name) for one in (alone, usual)]
    known = alone.trace.tables["dims"]
    if not any(known[code][0] for code in codes[0]):
        return "See whether it is called more often than in the others, or with larger inputs."
    if codes[0] <= codes[1]:
        return (
            "Its inputs have the same shapes as in the others: look for another process on the "
            "CPU, and for other threads of this one."
        )
    return (
        "Its inputs have shapes that the others do not have: sort inputs by size, or pad them to a "
        "few sizes."
    )


def _inputs(measured: MeasuredTrace, name: str) -> set[int]:
    """Return the codes of the inputs that an operator has in the steps."""
    trace = measured.trace
    chosen = measured.in_steps & trace.named(name.__eq__)
    return set(trace.spans["dims"][chosen].tolist())


def _mean_times(measured: MeasuredTrace) -> dict[str, float]:
    """Return the time of kernels, or of operators and labels, in the mean step, in ns by name."""
    steps = measured.breakdown
    included, count = host.work_of(measured, steps), max(1, steps.count)
    if not steps.on_host:
        found = kinds(measured.trace, measured.operators, included)
        return {one.name: one.total / count for one in found if one.core == "KERNEL"}
    rows = averages(measured.trace, measured.operators, included)
    return {row.name: row.self_ns / count for row in rows if row.name not in (STEPS, ITERATIONS)}


def _other_thread(measured: MeasuredTrace, chosen: NDArray[np.bool_]) -> str:
    """Return the thread of some spans in words; empty if it is one that ends steps."""
    thread = measured.trace.spans["thread"][chosen]
    if np.isin(thread, step_threads(measured.trace)).any():
        return ""
    _, number = measured.trace.tables["thread"][int(thread[0])]
    return f", on thread {number}"
