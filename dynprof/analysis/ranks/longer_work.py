"""What the rank that others wait for does more than they do; no trace of one rank alone tells."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.analysis.findings.finding import LEAST, RANKS_FIRST, Finding
from dynprof.analysis.findings.ranking import all_findings, without_repeated_advice
from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.analysis.measures.timeline.overhead import whose
from dynprof.runtime.plural import counted, number

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown
    from dynprof.analysis.ranks.comparison import Ranks

_MAX_NAMED = 3
"""So many operators and kernels are named."""
_MIN_SHARE = 0.1
"""Of what the rank works longer; what has less of it is not named."""


def findings_among(measured: MeasuredTrace, ranks: Ranks | None) -> list[Finding]:
    """Return what was found, the worst first; of the rank that others wait for, knowing them.

    Args:
        measured: The trace; of several ranks, that of the slowest.
        ranks: The ranks of its window, where several are compared.
    """
    steps = measured.breakdown
    found = all_findings(measured)
    if measured.tear.hides or ranks is None or not ranks.stragglers():
        return without_repeated_advice(found)
    known = [replace(one, advice=_without_ranks_first(one.advice)) for one in found]
    more = longer_work(steps, ranks)
    if more and more.badness >= LEAST:
        known.append(more)
    return without_repeated_advice(sorted(known, key=lambda one: -one.badness))


def _without_ranks_first(advice: str) -> str:
    """Return advice without what to look for first, where that has been found."""
    rest = advice.removeprefix(RANKS_FIRST)
    return advice if rest == advice else f"Try {rest}"


def longer_work(steps: Breakdown, ranks: Ranks) -> Finding | None:
    """Look for what the rank that others wait for does longer than the one in the middle."""
    late, *_ = ranks.stragglers()
    longer = late.own_ns - late.others_ns
    if longer <= 0:
        return None
    rows = ranks.operator_differences(late.rank, ranks.median())
    more = [(own - other, name, a, b) for name, _, a, b, own, other in rows if not whose(name)]
    named = sorted((row for row in more if row[0] >= _MIN_SHARE * longer), reverse=True)[
        :_MAX_NAMED
    ]
    of_it = "; ".join(f"{ms(time)} in {name} ({_times(a, b)})" for time, name, a, b in named)
    return Finding(
        f"Rank {late.rank} keeps the others waiting",
        steps.share(longer),
        f"Its own work takes {ms(late.own_ns)} a step on average, {late.others} "
        f"{ms(late.others_ns)}.{f' It takes longer by {of_it}.' if of_it else ''}",
        "Where it does more than the others, look for more or longer data on this rank, and for "
        "what only one rank does; where it does as much and takes longer, for a device or a "
        "processor that is slower or shared.",
    )


def _times(here: float, there: float) -> str:
    """Return how often something runs on either rank."""
    if number(here) == number(there):
        return f"{counted(here, 'time')} on both"
    return f"{counted(here, 'time')}, not {number(there)}"
