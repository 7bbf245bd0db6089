"""Finds what a late rank does longer than the others, which its own trace cannot show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.analysis.findings.finding import LEAST, RANKS_FIRST, Finding
from dynprof.analysis.findings.ranking import all_findings, without_repeated_advice
from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.analysis.measures.timeline.overhead import profiler_of
from dynprof.analysis.ranks.comparison import DEVICE_IDLE, LOADING, OUTSIDE
from dynprof.runtime.plural import counted, number

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown
    from dynprof.analysis.ranks.comparison import Ranks

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
    if more and more.severity >= LEAST:
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
        (own - other, name, a, b) for name, _, a, b, own, other in rows if not profiler_of(name)
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
        "processor that is slower or shared.",
    )


def _times(here: float, there: float) -> str:
    """Return how often something runs on each of two ranks, in words."""
    if number(here) == number(there):
        return f"{counted(here, 'time')} on both"
    return f"{counted(here, 'time')}, not {number(there)}"
