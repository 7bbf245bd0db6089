"""Comparison of a capture with a baseline, and the changes in a series of baselines."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.analysis.measures.difference import (
    DEVICE,
    KERNEL,
    MARKED,
    OPERATOR,
    PART,
    MeanStep,
    StepChange,
    growths,
)
from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.captures.manifest import Manifest

SCATTERS = 3.0
"""A median has changed if it moves by more than this many standard deviations of one value."""
LEAST_SHARE = 0.05
"""Share of a median by which it also has to move: a processor's clock varies by some percent."""
LEAST_BASELINES = 3
"""Baselines before and after a change, at least: one slow baseline may be a single slow step."""
NEAR = 8
"""Baselines on each side of a place that are compared, at most: a slowdown may end again."""
NORMAL = 1.4826
"""Standard deviation of normal values, as a multiple of their median distance from the median."""
ALIKE = 1.15
"""Ratio of two paces from which a baseline does not show what is usual: others differ from it."""
FEW = 4
"""Baselines at which the scatter counts twice: few values show only a part of their scatter."""
EXPLAINS = 0.25
"""Share of a step's change from which an operator is named; below it, a part of the step is."""
STEP = "step"
"""Name of the quantity with the median step."""


def against_baseline(measured: MeasuredTrace) -> str:
    """Return how a step compares with the last baseline of the same shape before, in a sentence.

    Empty if there is none that can be read.
    """
    manifest = measured.manifest
    if manifest is None or not isinstance(measured.path, Path):  # in a file system of fsspec
        return ""
    from dynprof.captures import baselines  # its import takes as long as numpy's

    if (now := baselines.opened_at(manifest)) is None:
        return ""
    place, wanted = measured.path.absolute().parent.parent, baselines.shape(manifest)
    alike = [
        one
        for one in baselines.baselines_in(place, manifest.role, manifest.rank)
        if one.opened_at < now and baselines.shape(one.manifest) == wanted
    ]
    for number, one in reversed([*enumerate(alike)]):
        try:
            before = MeanStep.of(type(measured)(one.trace)) if one.trace else None
        except CaptureError:
            continue
        if before:
            form = "%H:%M" if one.opened_at.date() == now.date() else "%d %b %H:%M"
            named = f"the baseline of {one.opened_at.strftime(form)}"
            older = [other.manifest for other in alike[:number]]
            return _compared(before, MeanStep.of(measured), named, _unlike(manifest, older))
    return ""


def _unlike(manifest: Manifest, older: Sequence[Manifest]) -> str:
    """Return what else the pace before a capture differs from, in words; empty for nothing.

    Compared are times outside of windows, which recording does not make longer.

    Args:
        manifest: The manifest of the capture.
        older: The manifests of older baselines.
    """
    now_ms = manifest.cost.step_before_ms or manifest.cost.step_during_ms
    paces = [one.cost.step_before_ms for one in older[-NEAR:] if one.cost.step_before_ms]
    usual_ms = {
        "in the hour before": manifest.cost.step_hour_ms,
        "before older baselines": statistics.median(paces) if paces else None,
    }
    for when, was_ms in usual_ms.items():
        if now_ms and was_ms and not 1 / ALIKE < now_ms / was_ms < ALIKE:
            now, was = ms(now_ms * 1e6), ms(was_ms * 1e6)
            return f"but just before this window a step took {now}, and {when} {was}"
    return ""


def _compared(before: MeanStep, after: MeanStep, named: str, unlike: str) -> str:
    """Return how a step compares with a baseline, in a sentence.

    Args:
        before: The mean step of the baseline.
        after: That of the capture.
        named: The baseline in words.
        unlike: Why the baseline does not show what is usual; empty if it does.
    """
    change = StepChange.of(before, after)
    if change is None or not (before.recorded[MARKED] and after.recorded[MARKED]):
        return ""
    (was, now), scatter = change.median_ns, change.scatter
    spread = max((part or 0.0) * median for part, median in zip(scatter, (was, now), strict=True))
    what = after.a_step[:1].upper() + after.a_step[1:]
    if abs(now - was) <= LEAST_SHARE * was and not unlike:
        return f"{what} takes {ms(now)}, as usual: {named} took {ms(was)}."
    if abs(now - was) <= LEAST_SHARE * was:
        return f"{what} takes {ms(now)}, like {named} ({ms(was)}), {unlike}."
    if abs(now - was) <= SCATTERS * NORMAL * spread:
        said = f"{what} takes {ms(now)}; {named} took {ms(was)}"
        doubt = "the steps scatter too much to tell whether that is a change"
        return f"{said}; {doubt}{f', {unlike}' if unlike else ''}."
    cause = _cause(before, after, now - was)
    return f"{what} takes {ms(now)}; {named} took {ms(was)}{cause}."


def _cause(before: MeanStep, after: MeanStep, change_ns: float) -> str:
    """Return what grew most, if a step takes longer, or shrank most."""
    has_device = before.recorded[DEVICE] and after.recorded[DEVICE]
    for by in (KERNEL if has_device else OPERATOR, PART):
        same_way = [one for one in growths(before, after, by) if one.cost_ns * change_ns > 0]
        if same_way and abs(same_way[0].cost_ns) >= EXPLAINS * abs(change_ns):
            how = "grew" if change_ns > 0 else "shrank"
            return f"; {same_way[0].name} {how} most, by {ms(abs(same_way[0].cost_ns))}"
    return ""


@dataclass(frozen=True)
class Change:
    """A quantity that is different from a baseline on.

    Attributes:
        first: Index of the first baseline with the new value.
        before_ns: Median of the baselines before it, since the last change.
        after_ns: Median from it on, until the next change.
    """

    first: int
    before_ns: float
    after_ns: float


@dataclass(frozen=True)
class Series:
    """One quantity over the baselines.

    Attributes:
        name: Its name.
        by: Its kind: :data:`STEP`, or a subject of :mod:`difference`.
        values: Its time in a step of each baseline, in ns.
        changes: Where it changes.
    """

    name: str
    by: str
    values: tuple[float, ...]
    changes: tuple[Change, ...]

    @property
    def median(self) -> float:
        """The median of its values, in ns."""
        return statistics.median(self.values)


def series(name: str, by: str, values: Sequence[float], least: float) -> Series:
    """Return a series with its changes; see :func:`change_points`."""
    firsts = change_points(values, least)
    ends = [0, *firsts, len(values)]
    medians = [statistics.median(values[a:b]) for a, b in itertools.pairwise(ends)]
    pairs = zip(firsts, medians, medians[1:], strict=False)
    return Series(name, by, tuple(values), tuple(Change(*one) for one in pairs))


def change_points(values: Sequence[float], least: float = 0.0) -> list[int]:
    """Return the indices from which values are different.

    The medians of up to :data:`NEAR` values before and after each place are compared. Values change
    where these are farthest apart, if that is more than :data:`SCATTERS` times the scatter, more
    than :data:`LEAST_SHARE`, and more than ``least``. Then both sides are searched. The scatter is
    that of the differences between neighbours, which a change leaves as it is.

    Args:
        values: The values, in order.
        least: The least change.
    """
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    scatter = NORMAL * statistics.median(steps) / math.sqrt(2) if steps else 0.0
    return _changes(values, max(SCATTERS * scatter * (1 + FEW / len(values)), least))


def _changes(values: Sequence[float], least: float) -> list[int]:
    places = range(LEAST_BASELINES, len(values) - LEAST_BASELINES + 1)
    if not places:
        return []
    place = max(places, key=lambda one: _score(values, one))
    before, after = sides(values, place)
    if _apart(before, after) <= max(least, LEAST_SHARE * abs(statistics.median(before))):
        return []
    later = (place + one for one in _changes(values[place:], least))
    return [*_changes(values[:place], least), place, *later]


def sides(values: Sequence[float], place: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return up to :data:`NEAR` values before a place, and as many from it on."""
    return values[max(0, place - NEAR) : place], values[place : place + NEAR]


def _score(values: Sequence[float], place: int) -> float:
    """Return how much nearer the values are to the medians of both sides than to a common one."""
    before, after = sides(values, place)
    return _spread([*before, *after]) - _spread(before) - _spread(after)


def _spread(values: Sequence[float]) -> float:
    median = statistics.median(values)
    return sum(abs(value - median) for value in values)


def _apart(before: Sequence[float], after: Sequence[float]) -> float:
    """Return how far two medians are apart; of two middle values, the nearer ones count."""
    low, high = statistics.median_low, statistics.median_high
    return max(low(after) - high(before), low(before) - high(after))
