"""Comparisons of captures: what grew in each step, and since the baselines before."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.modules import module_times
from dynprof.analysis.measures.timeline.breakdown import IDLE, RECORDING, ms
from dynprof.analysis.measures.timeline.kernels import category_times, kinds
from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.measures.timeline.operators import ITERATIONS, STEPS, averages, is_step
from dynprof.analysis.measures.timeline.phase_times import REST, mean_phases
from dynprof.analysis.measures.timeline.steps import median_of
from dynprof.analysis.reading.events import CALLS, FRAMES, KERNELS, OPERATORS
from dynprof.analysis.reading.spans import covered_until
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.captures.manifest import Manifest

    Table = Mapping[str, tuple[float, float]]
    "By name: how many ran in a step, and the time of all of them in ns."

PART, PHASE, CATEGORY, MODULE = "part", "phase", "category", "module"
OPERATOR, SHAPES, KERNEL = "operator", "shapes", "kernel"
SUBJECTS = (PART, PHASE, CATEGORY, MODULE, OPERATOR, SHAPES, KERNEL)
"""What is compared. Kernels are last: their names differ between devices and versions of torch."""
_MODULE_ON_HOST, _WITHOUT_SHAPES = "module on the host", "operator on the device"
"""Tables that replace those of modules and shapes if only one capture has what these need."""
NO_OPERATOR, NO_MODULE = "(no operator)", "(no module)"
"""The rows of device time that no operator, or no module, launched, or an unknown one."""
DEVICE, WITH_SHAPES, MARKED = "a device", "shapes of operators", "marked steps"
_NUMBER = re.compile(r"(?<=.)#\d+$")
"""The number at the end of the name of a range."""
MIN_DEVIATIONS = 3.0
"""A median has changed if it moves by more than this many standard deviations of one value."""
MIN_CHANGE_SHARE = 0.05
"""Share of a median by which it also has to move: a CPU's clock varies by some percent."""
MIN_BASELINES = 3
"""Baselines before and after a change, at least: one slow baseline may be a single slow step."""
NEAR = 8
"""Baselines on each side of a place that are compared, at most: a slowdown may end again."""
NORMAL = 1.4826
"""Standard deviation of normal values, as a multiple of their median distance from the median."""
ALIKE = 1.15
"""Ratio of two paces from which a baseline does not show what is usual: others differ from it."""
FEW = 4
"""Baselines at which the variation counts twice: few values show only a part of their variation."""
EXPLAINS = 0.25
"""Share of a step's change from which an operator is named; below it, a part of the step is."""
STEP = "step"
"""Name of the quantity with the median step."""


@dataclass(frozen=True)
class MeanStep:
    """The mean step of a trace, or of the traces of several ranks.

    Attributes:
        a_step: What to call it in a sentence: a trace without steps is "the trace".
        lengths: The duration of each step, in ns; on the device if that is behind the host.
            Without the profiler's own work, as far as it is known.
        recording_ns: That work in the mean step.
        whole_ns: Its duration.
        tables: By subject, how many ran in it and their time, by name. Parts are of its wall time;
            phases and operators of the host; categories, modules, shapes and kernels of devices.
        of_labels: Whether its modules are labels, because no module was recorded.
        recorded: Whether each kind of data that affects the other numbers was recorded.
        kind: The kind of its iterations, if it is one of an inference server.
        size: The median number of requests of these, and of tokens; None if unknown.
    """

    a_step: str
    lengths: tuple[float, ...]
    whole_ns: float
    tables: Mapping[str, Table]
    of_labels: bool
    recorded: Mapping[str, bool]
    recording_ns: float = 0.0
    kind: str = ""
    size: tuple[float | None, float | None] = (None, None)

    @classmethod
    def by_kind(cls, measured: MeasuredTrace) -> dict[str, MeanStep]:
        """Return the mean iteration of each kind of a server; the mean step of other traces."""
        kinds: dict[str, list[MarkedStep]] = {}
        for step in measured.marked:
            label = measured.iterations.get(step)
            kinds.setdefault(label.kind if label else "", []).append(step)
        if len(kinds) < 2:
            return dict.fromkeys(kinds or [""], cls.of(measured))
        return {kind: cls.of(measured.only(steps)) for kind, steps in kinds.items()}

    @classmethod
    def of(cls, measured: MeasuredTrace) -> MeanStep:
        """Return the mean step of a trace."""
        breakdown = measured.breakdown
        host, device = _work(measured)
        modules, on_host, of_labels = _modules(measured)
        shapes = list(_shapes(measured))
        labels = [label for one in measured.marked if (label := measured.iterations.get(one))]
        own = recording_times(measured)
        return cls(
            a_step=breakdown.a_step,
            lengths=tuple(took - own[step] for step, took in step_lengths(measured).items()),
            recording_ns=sum(own.values()) / max(1, len(own)),
            whole_ns=breakdown.length,
            tables={
                PART: {name: (1, time) for name, time in _parts(measured).items()},
                PHASE: {name: (1, time) for name, time in _phases(measured).items()},
                CATEGORY: _categories(measured),
                MODULE: modules,
                _MODULE_ON_HOST: on_host,
                OPERATOR: host,
                SHAPES: _sums(
                    (f"{name} {dims}".rstrip(), count, time) for name, dims, count, time in shapes
                ),
                _WITHOUT_SHAPES: _sums((name, count, time) for name, _, count, time in shapes),
                KERNEL: device,
            },
            of_labels=of_labels,
            recorded=_recorded(measured),
            kind=labels[0].kind if labels else "",
            size=(
                _known_median([label.requests for label in labels]),
                _known_median([label.tokens for label in labels]),
            ),
        )

    @classmethod
    def of_ranks(cls, ranks: Sequence[MeanStep]) -> MeanStep:
        """Return the mean over ranks. Work that a rank does not have counts as 0 for it."""
        return cls(
            a_step=" or ".join(sorted({rank.a_step for rank in ranks})),
            lengths=tuple(length for rank in ranks for length in rank.lengths),
            whole_ns=sum(rank.whole_ns for rank in ranks) / len(ranks),
            tables={
                subject: _mean([rank.tables[subject] for rank in ranks])
                for subject in ranks[0].tables
            },
            of_labels=all(rank.of_labels for rank in ranks),
            recorded={what: all(r.recorded[what] for r in ranks) for what in ranks[0].recorded},
            recording_ns=sum(rank.recording_ns for rank in ranks) / len(ranks),
            kind=ranks[0].kind,
            size=ranks[0].size,
        )


def _parts(measured: MeasuredTrace) -> dict[str, float]:
    """Return the parts of the mean step; what the profiler itself causes is not idle time."""
    found, steps = dict(measured.breakdown.parts), measured.breakdown
    if not steps.on_host and steps.time_in(steps.recording) and measured.idle:
        own = measured.idle.by_cause()[RECORDING] / max(1, steps.count)
        found |= {IDLE: found[IDLE] - own, RECORDING: own}
    return found


def _phases(measured: MeasuredTrace) -> dict[str, float]:
    """Return the phases of the host in the mean step; the profiler's own work is not the rest."""
    found, own = mean_phases(measured.phases), recording_times(measured)
    if time := sum(own.values()):
        mean = time / len(own)
        found |= {REST: found[REST] - mean, RECORDING: mean}
    return found


def recording_times(measured: MeasuredTrace) -> dict[MarkedStep, int]:
    """Return how long the profiler itself worked in each step, as its frames on the host tell.

    It is 0 where steps are not as long as on the host.
    """
    if measured.iterations or measured.breakdown.behind:
        return dict.fromkeys(measured.marked, 0)
    begins = np.array([begin for _, begin, _ in measured.marked], np.int64)
    ends = begins + np.array([length for *_, length in measured.marked], np.int64)
    where = measured.breakdown.recording
    inside = covered_until(where, ends) - covered_until(where, begins)
    return dict(zip(measured.marked, inside.tolist(), strict=True))


def step_lengths(measured: MeasuredTrace) -> dict[MarkedStep, float]:
    """Return the duration of each step; if the device is behind, between the ends of its work.

    Of an iteration it is the time until its work was done. Steps without work are left out if the
    device is behind.
    """
    breakdown = measured.breakdown
    if measured.iterations or not breakdown.behind:
        return {step: float(measured.took(step)) for step in measured.marked}
    found: dict[MarkedStep, float] = {}
    reached = breakdown.steps[0][1]
    for step in measured.steps:
        if step.device == breakdown.device and step.stage:
            end = max(reached, step.begin + step.preparing + step.stage)
            found[step.number, step.begin, step.length] = float(end - reached)
            reached = end
    return found


def _known_median(values: Sequence[int | None]) -> float | None:
    """Return the median; None if a value is unknown."""
    known = [value for value in values if value is not None]
    return median_of(known) if known and len(known) == len(values) else None


def _mean(of_each: Sequence[Table]) -> Table:
    found: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(name for one in of_each for name in one):
        counts, times = zip(*(one.get(name, (0.0, 0.0)) for one in of_each), strict=True)
        found[name] = sum(counts) / len(of_each), sum(times) / len(of_each)
    return found


@dataclass(frozen=True)
class Growth:
    """How one name changed from the first capture to the second, in each step.

    Attributes:
        name: Name of the part, phase, category, module, operators or kernels.
        by: The subject of :data:`SUBJECTS`.
        count: How many ran in a step of the first capture, and of the second.
        time_ns: Their self time in a step of the first capture, and of the second.
    """

    name: str
    by: str
    count: tuple[float, float]
    time_ns: tuple[float, float]

    @property
    def cost_ns(self) -> float:
        """The extra time in each step, in ns; negative if it takes less."""
        return self.time_ns[1] - self.time_ns[0]


def growths(one: MeanStep, other: MeanStep, by: str) -> list[Growth]:
    """Return every name whose time or count changed, the largest change first.

    Args:
        one: The first mean step.
        other: The second one.
        by: The subject, of :data:`SUBJECTS`.
    """
    table, _ = _table_to_compare(one, other, by)
    if not table:
        return []
    before, after, found = one.tables[table], other.tables[table], []
    for name in dict.fromkeys((*before, *after)):
        (count, time), (count_after, time_after) = (
            rows.get(name, (0.0, 0.0)) for rows in (before, after)
        )
        if (count, time) != (count_after, time_after):
            counts = (count, count_after) if by not in (PART, PHASE) else (1.0, 1.0)
            found.append(Growth(name, by, counts, (time, time_after)))
    return sorted(found, key=lambda growth: -abs(growth.cost_ns))


def why_not_by(one: MeanStep, other: MeanStep, by: str, *, requested: bool = False) -> str:
    """Return what cannot be compared by a subject, and what is compared instead.

    Empty if all of it is compared.

    Args:
        one: The first mean step.
        other: The second one.
        by: The subject, of :data:`SUBJECTS`.
        requested: Whether to say also what is missing in both.
    """
    table, why = _table_to_compare(one, other, by)
    if not why and requested:
        if not table:
            why = f"neither has {DEVICE}"
        elif table == _WITHOUT_SHAPES:
            why = "neither has shapes of operators; names without shapes are compared"
        elif not (one.tables[table] or other.tables[table]):
            why = "neither has any"
    return f"by {by}: {why}" if why else ""


def _table_to_compare(one: MeanStep, other: MeanStep, by: str) -> tuple[str, str]:
    """Return the table that compares a subject, empty if none; and what it cannot compare."""
    device, shapes = (_only_in(one, other, what) for what in (DEVICE, WITH_SHAPES))
    if by == MODULE and one.of_labels != other.of_labels:
        which = "second" if one.of_labels else "first"
        return "", f"not compared, because only the {which} has modules"
    if by == MODULE and device:
        return _MODULE_ON_HOST, f"{device}; times on the host are compared"
    if by == MODULE:
        return (MODULE if one.recorded[DEVICE] else _MODULE_ON_HOST), ""
    if by in (CATEGORY, SHAPES, KERNEL) and (device or not one.recorded[DEVICE]):
        return "", f"not compared, because {device}" if device else ""
    if by == SHAPES and (shapes or not one.recorded[WITH_SHAPES]):
        return _WITHOUT_SHAPES, f"{shapes}; names without shapes are compared" if shapes else ""
    return by, ""


def _only_in(one: MeanStep, other: MeanStep, what: str) -> str:
    """Return that only one of two has a kind of data; empty if both have it, or neither."""
    if one.recorded[what] == other.recorded[what]:
        return ""
    return f"only the {'first' if one.recorded[what] else 'second'} has {what}"


def why_not_comparable(one: MeanStep, other: MeanStep) -> list[str]:
    """Return the reasons why the numbers of two captures cannot be compared."""
    reasons = [why for what in one.recorded if (why := _only_in(one, other, what))]
    if one.kind != other.kind:
        first, second = (f"{step.kind} iterations" if step.kind else "steps"
                         for step in (one, other))  # fmt: skip
        reasons.append(f"no kind of iteration is in both: 1 has {first}, 2 has {second}")
    return reasons


@dataclass(frozen=True)
class StepChange:
    """How much longer a step takes in the second capture, and how much the steps vary.

    The median is used: a first step, a checkpoint or a garbage collection in one step of a few
    would move their mean by more than what a commit changes.

    Attributes:
        median_ns: Duration of the median step, in the first capture and in the second.
        steps: Number of steps of each.
        variation: Median distance of the steps from their median, as a share of it; None for one
            step, whose variation is unknown.
    """

    median_ns: tuple[float, float]
    steps: tuple[int, int]
    variation: tuple[float | None, float | None]

    @classmethod
    def of(cls, one: MeanStep, other: MeanStep) -> StepChange | None:
        """Return the change; None if the steps of the first have no duration."""
        if not (one.lengths and other.lengths) or median_of(one.lengths) <= 0:
            return None
        before, after = median_of(one.lengths), median_of(other.lengths)
        variation = (_variation(one.lengths), _variation(other.lengths))
        return cls((before, after), (len(one.lengths), len(other.lengths)), variation)

    @property
    def share(self) -> float:
        """The extra time as a share of the first capture's step; negative if it takes less."""
        return self.median_ns[1] / self.median_ns[0] - 1


def _variation(lengths: Sequence[float]) -> float | None:
    """Return the median distance from the median, as a share of it; None if unknown."""
    median = median_of(lengths)
    if len(lengths) < 2 or median <= 0:
        return None
    return median_of([abs(length - median) for length in lengths]) / median


def _recorded(measured: MeasuredTrace) -> dict[str, bool]:
    """Return whether each kind of data that affects the other numbers was recorded."""
    trace = measured.trace
    return {
        "operators": bool(trace.category(OPERATORS).any()),
        "the host's Python frames": bool(trace.category(FRAMES).any()),
        WITH_SHAPES: len(trace.tables["dims"]) > 1,
        "memory events": len(trace.memory["time"]) > 0,
        DEVICE: bool(trace.category(KERNELS).any()),
        "Python calls instead of operators": bool(trace.category(CALLS).any()),
        "all of its events": trace.complete,
        MARKED: any(number is not None for number, _, _ in measured.marked),
        "phases of the host": any(
            step[name] for step in measured.phases for name in step.keys() - {REST}
        ),
    }


def step_work(measured: MeasuredTrace) -> Iterator[tuple[str, str, float, float]]:
    """Yield name, place (``host`` or ``device``), count and self ns of the work of a step.

    Ranges that differ only in their number count as one, such as ``epoch#*``.
    """
    steps, counted = max(1, len(measured.marked)), measured.in_steps
    found: dict[str, tuple[int, int]] = {}
    for average in averages(measured.trace, measured.operators, counted):
        name = _plain(average.name)
        count, self_ns = found.get(name, (0, 0))
        found[name] = count + average.count, self_ns + average.self_ns
    for name, (count, self_ns) in found.items():
        if name not in (STEPS, ITERATIONS):
            yield name, "host", count / steps, self_ns / steps
    for kind in kinds(measured.trace, measured.operators, counted):
        if kind.core != "HOST":
            yield kind.name, "device", kind.count / steps, kind.total / steps


def _plain(name: str) -> str:
    """Return the name of a range without the number at its end."""
    return _NUMBER.sub("#*", name)


def _sums(rows: Iterable[tuple[str, float, float]]) -> Table:
    """Return the sums of counts and times by name."""
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for name, count, time in rows:
        counted, spent = found[name]
        found[name] = counted + count, spent + time
    return dict(found)


def _work(measured: MeasuredTrace) -> tuple[Table, Table]:
    """Return the self times of operators and of kernels in a step."""
    work = list(step_work(measured))
    host, device = (
        _sums((name, count, self_ns) for name, where, count, self_ns in work if where == place)
        for place in ("host", "device")
    )
    return host, device


def _categories(measured: MeasuredTrace) -> Table:
    """Return the device time of each category in a step, over all devices."""
    steps = max(1, len(measured.marked))
    found = category_times(
        measured.trace, measured.launches, measured.category_codes, measured.in_steps
    )
    return _sums((row.category, row.count / steps, row.total / steps) for row in found)


def _modules(measured: MeasuredTrace) -> tuple[Table, Table, bool]:
    """Return device and host time of modules in a step, by path; and whether they are labels."""
    steps = max(1, len(measured.marked))
    found, of_labels = module_times(
        measured.trace, measured.operators, measured.launches, measured.in_steps
    )
    paths = [("/".join(map(_plain, row.path)), row) for row in found]
    work = measured.launches.work
    whole = int(measured.trace.spans["length"][work[measured.in_steps[work]]].sum())
    rest = whole - sum(row.device for row in found)
    outside = [(NO_MODULE, 0.0, rest / steps)] if found and rest else []
    inside = ((path, row.calls / steps, row.device / steps) for path, row in paths)
    device = _sums((*inside, *outside))
    host = _sums((path, row.calls / steps, row.host / steps) for path, row in paths)
    return device, host, of_labels


def _shapes(measured: MeasuredTrace) -> Iterator[tuple[str, str, float, float]]:
    """Yield name and shapes of the operators of a step, their count, and their device time in ns.

    Time that no operator or label launched has a row of its own.
    """
    trace, found, counted = measured.trace, measured.operators, measured.in_steps
    steps, width = max(1, len(measured.marked)), max(1, len(trace.tables["dims"]))
    key = trace.spans["name"][found.span] * width + trace.spans["dims"][found.span]
    keys, row = np.unique(key, return_inverse=True)
    counts = np.bincount(row[counted[found.span]], minlength=len(keys))
    kept = counted[measured.launches.work]
    launcher, work = measured.launchers[kept], measured.launches.work[kept]
    times, known = trace.spans["length"][work], launcher != UNKNOWN
    spent = np.bincount(row[launcher[known]], times[known], len(keys))
    columns = (keys, counts, spent.astype(np.int64))
    for code, count, time in zip(*(column.tolist() for column in columns), strict=True):
        name, dims = trace.tables["name"][code // width], trace.tables["dims"][code % width][0]
        if is_step(name):
            name, count = NO_OPERATOR, 0
        if count or time:
            yield _plain(name), _spaced(dims), count / steps, time / steps
    if not known.all():
        yield NO_OPERATOR, "", 0.0, int(times[~known].sum()) / steps


def _spaced(dims: bytes) -> str:
    """Return shapes as Kineto writes them, with the same spaces for each version of it."""
    plain = dims.decode(errors="replace").replace(" ", "")
    return plain.replace(",", ", ")


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
    (was, now), variation = change.median_ns, change.variation
    spread = max((part or 0.0) * median for part, median in zip(variation, (was, now), strict=True))
    what = after.a_step[:1].upper() + after.a_step[1:]
    if abs(now - was) <= MIN_CHANGE_SHARE * was and not unlike:
        return f"{what} takes {ms(now)}, as usual: {named} took {ms(was)}."
    if abs(now - was) <= MIN_CHANGE_SHARE * was:
        return f"{what} takes {ms(now)}, like {named} ({ms(was)}), {unlike}."
    if abs(now - was) <= MIN_DEVIATIONS * NORMAL * spread:
        said = f"{what} takes {ms(now)}; {named} took {ms(was)}"
        doubt = "the steps vary too much to tell whether that is a change"
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
    where these are farthest apart, if that is more than :data:`MIN_DEVIATIONS` times the variation,
    more than :data:`MIN_CHANGE_SHARE`, and more than ``least``. Then both sides are searched. The
    variation is that of the differences between neighbours, which a change leaves as it is.

    Args:
        values: The values, in order.
        least: The least change.
    """
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    variation = NORMAL * statistics.median(steps) / math.sqrt(2) if steps else 0.0
    return _changes(values, max(MIN_DEVIATIONS * variation * (1 + FEW / len(values)), least))


def _changes(values: Sequence[float], least: float) -> list[int]:
    places = range(MIN_BASELINES, len(values) - MIN_BASELINES + 1)
    if not places:
        return []
    place = max(places, key=lambda one: _score(values, one))
    before, after = sides(values, place)
    if _apart(before, after) <= max(least, MIN_CHANGE_SHARE * abs(statistics.median(before))):
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
