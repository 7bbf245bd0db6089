"""Run all rules on a trace, compare it with other ranks, and order the findings by severity."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.analysis.findings import device, host
from dynprof.analysis.findings.finding import (
    MIN_FINDING_SHARE,
    OF_A_STEP,
    RANKS_FIRST,
    Finding,
    has_stacks,
    stacks_command,
)
from dynprof.analysis.findings.idle import IDLE_RULES
from dynprof.analysis.findings.outliers import outlier_findings
from dynprof.analysis.measures.critical_path import dependencies
from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.analysis.measures.timeline.overhead import profiler_of
from dynprof.analysis.rank_comparison.comparison import DEVICE_IDLE, LOADING, OUTSIDE
from dynprof.runtime.plural import counted, number

if TYPE_CHECKING:
    from dynprof.analysis.measures.critical_path import Dependencies
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown
    from dynprof.analysis.rank_comparison.comparison import Ranks

_RULES = (
    host.data_loading, host.garbage, host.compiling, host.between_operators, host.small_operators,
    host.costliest, host.optimizer, host.checkpoint, host.recomputation,
    device.exposed_communication, device.exposed_copies, device.memory, device.fusible_kernels,
    *IDLE_RULES,
)  # fmt: skip
"""Rules that run on the steps of a trace."""
_MIN_AFTER = 0.01
"""Share of a step from which it is said that a step's work ends later than the step."""
_MAX_NAMED = 3
"""Operators and kernels that are named, at most."""
_WITHOUT_OPERATORS = {
    OUTSIDE: "outside of operators",
    DEVICE_IDLE: "while the device is idle",
    LOADING: "in data loading",
}
"""Words for the rows that are no operators."""
_MIN_SHARE = 0.1
"""Share of the longer time of the rank below which an operator is not named."""


def all_findings(measured: MeasuredTrace, least: float = MIN_FINDING_SHARE) -> list[Finding]:
    """Return the findings on a trace, the one first that makes an average step shorter by most.

    An outlier counts by its share of that. Of a few steps it counts least: it may be chance. If no
    stacks were recorded, the first finding that could name a function says how to record them.

    Args:
        measured: The trace.
        least: Share of a step that each must save; 0 returns also those that others hide.
    """
    if not measured.truncation.judged:
        return []
    usual = measured.without_outliers
    found = [*outlier_findings(measured), *findings(usual, usual.breakdown, least)]
    found.sort(key=lambda finding: -finding.severity)
    place = next((place for place, one in enumerate(found) if one.by_line), None)
    if place is not None and not has_stacks(measured):
        named = f"To see which functions, record with stacks: {stacks_command(measured)}."
        found[place] = replace(found[place], advice=f"{found[place].advice} {named}")
    return found


def without_repeated_advice(found: list[Finding]) -> list[Finding]:
    """Return findings, in their final order, of which none repeats the advice of an earlier one."""
    first: dict[str, int] = {}
    result = []
    for place, one in enumerate(found, 1):
        same = next((first[text] for text in first if text.startswith(one.advice)), None)
        first.setdefault(one.advice, place)
        result.append(replace(one, advice=f"Try the same as for {same}.") if same else one)
    return result


def findings(
    measured: MeasuredTrace, steps: Breakdown, least: float = MIN_FINDING_SHARE
) -> list[Finding]:
    """Return the findings on some steps, the largest saving first; none if events may be missing.

    Of findings that save as much, the one with the largest share comes first. One that saves less
    than ``least`` of a step is left out.
    """
    if not measured.truncation.judged:
        return []
    found = [finding for rule in _RULES if (finding := rule(measured, steps))]
    found = [finding for finding in found if finding.severity >= MIN_FINDING_SHARE]
    depends = None
    if not steps.on_host and any(finding.removal for finding in found):
        path = measured.critical_path
        if path is None or not path.is_unknown:  # an unknown wait may be for what is removed
            depends = dependencies(
                measured.trace, measured.marked, measured.launches, behind=steps.behind
            )
    found = [_with_savings(f, depends, steps) if f.of == OF_A_STEP else f for f in found]
    found = [finding for finding in found if finding.severity >= least]
    return sorted(found, key=lambda finding: (-finding.severity, -finding.share))


def _with_savings(finding: Finding, depends: Dependencies | None, steps: Breakdown) -> Finding:
    """Return a finding that also says what a step, or the trace, would save at most.

    Its share is of the length that it names, else of the verdict's.
    """
    time = finding.share * steps.length if finding.most < 0 else finding.most
    after = 0.0
    if depends and finding.removal:
        time = min(time, depends.saved(finding.removal))
        after = 0 if steps.behind else depends.after / depends.steps
    whole, share, of = steps.length + after, finding.share, steps.shares_of
    less = f"{ms(time)} shorter at most"
    if time < 1:
        less = "no shorter, as something else lasts as long"
    elif after >= _MIN_AFTER * steps.length:
        share, of = share * steps.length / whole, f"the {ms(whole)} until all its work is done"
        less += f", of {of}"
    saves = f"{finding.without} {steps.a_step} would be {less}."
    weight = max(0.0, min(1.0, time / whole)) if whole > 0 else 0.0
    return replace(finding, share=share, saves=saves, of=of, weight=weight)


def findings_among(measured: MeasuredTrace, ranks: Ranks | None) -> list[Finding]:
    """Return the findings on a trace, the worst first, also in comparison with other ranks.

    What makes others wait comes before all others: they end when it does.

    Args:
        measured: The trace; of several ranks, that of the slowest.
        ranks: The ranks of its window, if several are compared.
    """
    steps = measured.breakdown
    found = all_findings(measured)
    if not measured.truncation.judged or ranks is None or not ranks.stragglers():
        return without_repeated_advice(found)
    known = [replace(one, advice=_without_ranks_first(one.advice)) for one in found]
    more = longer_work(steps, ranks)
    if more and more.severity >= MIN_FINDING_SHARE:
        known.insert(0, more)
    return without_repeated_advice(known)


def _without_ranks_first(advice: str) -> str:
    """Return advice without its start about other ranks, which are known here."""
    rest = advice.removeprefix(RANKS_FIRST)
    return advice if rest == advice else f"Try {rest}"


def longer_work(steps: Breakdown, ranks: Ranks) -> Finding | None:
    """Find what the rank that others wait for does longer than the median rank."""
    late, *_ = ranks.stragglers()
    longer = late.own_ns - late.others_ns
    if longer <= 0:
        return None
    rows = ranks.operator_differences(late.rank, ranks.median())
    more = [
        (self_ns - other, name, a, b)
        for name, _, a, b, self_ns, other in rows
        if not profiler_of(name)
    ]
    named = sorted((row for row in more if row[0] >= _MIN_SHARE * longer), reverse=True)[
        :_MAX_NAMED
    ]
    of_it = "; ".join(
        f"{ms(time)} {_WITHOUT_OPERATORS.get(name) or f'in {name} ({_times(a, b)})'}"
        for time, name, a, b in named
    )
    return Finding(
        f"Rank {late.rank} keeps the others waiting",
        steps.share(longer),
        f"Its own work averages {ms(late.own_ns)} a step, {late.others} "
        f"{ms(late.others_ns)}.{f' It takes longer by {of_it}.' if of_it else ''}",
        "If it does more than the others, look for more or longer data on this rank, and for work "
        "that only one rank does. If it does as much and takes longer, look for a device or "
        "CPU that is slower or shared.",
    )


def _times(here: float, there: float) -> str:
    """Return how often something runs on each of two ranks, in words."""
    if number(here) == number(there):
        return f"{counted(here, 'time')} on both"
    return f"{counted(here, 'time')}, not {number(there)}"
