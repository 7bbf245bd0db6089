"""Reads the baselines of a job: how long a step, its parts and its operators took."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.analysis.measures.difference import (
    KERNEL,
    MIN_CHANGE_SHARE,
    OPERATOR,
    PART,
    PHASE,
    STEP,
    Change,
    MeanStep,
    Series,
    series,
    sides,
)
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.analysis.report.contents import write_page
from dynprof.captures.baselines import (
    Baseline,
    baseline_places,
    baselines_in,
    kept_at_most,
    ranks_with_baselines,
    shape,
)
from dynprof.errors import CaptureError
from dynprof.runtime.plural import counted, sentence
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

MIN_STEP_SHARE = 0.01
"""Share of a step that a part or a phase must take to be shown, and by which anything changes."""
MAX_NAMES = 5
"""Operators, and kernels, in a trend: those with the most time in any baseline."""
_SCRIPTS = ("bundled/uPlot.iife.js", "bars.js", "table.js", "trend.js")
"""The scripts of the page; parts of the report."""


@dataclass(frozen=True)
class Trend:
    """The baselines of one rank, as far as the job keeps them.

    Attributes:
        place: Where they are.
        rank: The rank, in words.
        others: Number of other ranks that have baselines.
        baselines: The baselines, oldest first.
        labels: When each was recorded.
        series: The step, then parts, phases, operators and kernels.
        left_out: Why some baselines are not compared, in sentences.
    """

    place: Path
    rank: str
    others: int
    baselines: tuple[Baseline, ...]
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    left_out: tuple[str, ...]

    def sentences(self) -> list[str]:
        """Return the changes, in the order of time; those of a step name what changed with it.

        Changes at neighbouring baselines are one: a window may hold steps of before and after.
        """
        pace, found = self.series[0], []
        for change in pace.changes:
            with_it = [
                (one, other)
                for one in self.series[1:]
                for other in one.changes
                if _is_same(other, change)
                and (other.after_ns - other.before_ns) * (change.after_ns - change.before_ns) > 0
            ]
            operators = [pair for pair in with_it if pair[0].by in (OPERATOR, KERNEL)]
            most = max(
                operators or with_it,
                key=lambda p: abs(p[1].after_ns - p[1].before_ns),
                default=None,
            )
            text = f"a step took {ms(change.before_ns)}, and takes {ms(change.after_ns)} "
            text += f"from {self.named(change.first)} on"
            if most:
                one, other = most
                text += f"; {one.name} went from {ms(other.before_ns)} to {ms(other.after_ns)}"
            found.append(text)
        for one in self.series[1:]:
            found += [
                f"the {one.by} {one.name} went from {ms(c.before_ns)} to {ms(c.after_ns)} from "
                f"{self.named(c.first)} on{self._pace_around(c.first)}"
                for c in one.changes
                if not any(_is_same(c, change) for change in pace.changes)
            ]
        return found

    def _pace_around(self, place: int) -> str:
        """Return what the steps did where something else changed, as the end of a sentence."""
        before, after = map(statistics.median, sides(self.series[0].values, place))
        if abs(after - before) <= MIN_CHANGE_SHARE * before:
            return ", and the pace of steps did not change"
        return f"; the median step went from {ms(before)} to {ms(after)}, within its variation"

    def named(self, place: int) -> str:
        """Return the name of a baseline: when it was recorded, and its first step."""
        steps = self.baselines[place].manifest.steps
        return f"the baseline of {self.labels[place]} (step {steps.first})"


def _is_same(one: Change, other: Change) -> bool:
    """Return whether two quantities changed at the same baseline or at neighbours."""
    return abs(one.first - other.first) <= 1


def read_trend(
    path: Path, rank: int | None = None, on_read: Callable[[object], object] = id
) -> Trend:
    """Read the baselines of a rank below a path.

    Args:
        path: The directory of a config or of captures.
        rank: The rank; the lowest one that has baselines if None.
        on_read: Called when a trace has been read.

    Raises:
        CaptureError: There are no baselines, or none can be read.
    """
    (place, role, number), every, others = _newest_place(path, rank)
    wanted = shape(every[-1].manifest)
    alike = [one for one in every if shape(one.manifest) == wanted]
    kept, steps, left_out = [], [], []
    if sum(bool(one.trace) for one in every) >= (limit := kept_at_most(every[-1].manifest)):
        left_out.append(
            f"any baselines before these, as the job keeps the newest {limit}; "
            "dynprof history has the step time of the whole job"
        )
    if unlike := len(every) - len(alike):
        left_out.append(f"baselines with other settings than the newest: {unlike} of {len(every)}")
    for one in alike:
        if one.trace is None:
            left_out.append(f"{one.folder} has no trace: {one.manifest.reason}")
            continue
        try:
            steps.append(MeanStep.of(MeasuredTrace(one.trace)))
            kept.append(one)
        except CaptureError as error:
            left_out.append(str(error))
        on_read(one)
    if not kept:
        raise CaptureError("\n".join(left_out))
    return Trend(
        place=place,
        rank=f"{role} rank {number}".lstrip(),
        others=others,
        baselines=tuple(kept),
        labels=tuple(_labels([one.opened_at for one in kept])),
        series=tuple(_series(steps)),
        left_out=tuple(left_out),
    )


def _newest_place(
    path: Path, rank: int | None
) -> tuple[tuple[Path, str, int], list[Baseline], int]:
    """Return the place with the newest baseline, with the lowest rank there or the requested one.

    Returns:
        Place, role and rank; its baselines; and the number of other ranks with baselines.
    """
    newest: tuple[tuple[Path, str, int], list[Baseline], int] | None = None
    for place in baseline_places(path):
        ranks = ranks_with_baselines(place)
        wanted = [one for one in ranks if rank in (None, one[1])][:1]
        for role, number in wanted:
            every = baselines_in(place, role, number)
            if every and (newest is None or every[-1].opened_at > newest[1][-1].opened_at):
                newest = (place, role, number), every, len(ranks) - 1
    if newest is None:
        of = "" if rank is None else f" of rank {rank}"
        text = f"{path} has no baselines{of}; dynprof arm DIR --every 30m records them"
        raise CaptureError(text)
    return newest


def _labels(times: Sequence[datetime]) -> list[str]:
    """Return when baselines were recorded: the shortest form of time that tells them apart."""
    days = "" if len({at.date() for at in times}) == 1 else "%d %b "
    for form in (f"{days}%H:%M", f"{days}%H:%M:%S"):
        found = [at.strftime(form) for at in times]
        if len(set(found)) == len(found):
            break
    return found


def _series(steps: Sequence[MeanStep]) -> Iterable[Series]:
    pace = [statistics.median(one.lengths) if one.lengths else one.whole_ns for one in steps]
    least = MIN_STEP_SHARE * statistics.median(pace)
    yield series(STEP, STEP, pace, 0.0)
    for by in (PART, PHASE, OPERATOR, KERNEL):
        tables = [one.tables[by] for one in steps]
        most = _most_time(tables)
        for name in most if by in (PART, PHASE) else most[:MAX_NAMES]:
            values = [table.get(name, (0, 0.0))[1] for table in tables]
            if by in (OPERATOR, KERNEL) or max(values) >= least:
                yield series(name, by, values, least)


def _most_time(tables: Sequence[Mapping[str, tuple[float, float]]]) -> list[str]:
    """Return the names in tables, the one with the most time in any of them first."""
    most: dict[str, float] = {}
    for table in tables:
        for name, (_, spent) in table.items():
            most[name] = max(most.get(name, 0.0), spent)
    return sorted(most, key=lambda name: -most[name])


def write_trend(found: Trend, path: Path) -> None:
    """Write the page about a trend.

    Raises:
        CaptureError: This installation lacks a part of the page.
        OSError: The file cannot be written.
    """
    at = [one.opened_at.timestamp() for one in found.baselines]
    data = {
        "title": f"{counted(len(at), 'baseline')}, {found.rank}, {found.place}",
        "verdict": " ".join(map(sentence, found.sentences())) or "No quantity has changed.",
        "warnings": [sentence(text) for text in found.left_out],
        "made_by": f"dynprof {__version__}",
        "at": at,
        "names": [found.named(place) for place in range(len(at))],
        "series": [
            {
                "name": one.name,
                "by": one.by,
                "ms": [value / 1e6 for value in one.values],
                "median": one.median / 1e6,
                "changes": [
                    [found.labels[change.first], change.before_ns / 1e6, change.after_ns / 1e6]
                    for change in one.changes
                ],
                "firsts": [change.first for change in one.changes],
            }
            for one in found.series
        ],
    }
    write_page(path, "trend.html", found.place.name, data, _SCRIPTS)
