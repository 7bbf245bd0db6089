"""Compares two windows by the mean step of the ranks that both have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.analysis.measures.difference import MeanStep
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.recorded_window import (
    newest_measured,
    window_below,
    window_named,
    window_words,
)
from dynprof.errors import CaptureError
from dynprof.runtime.plural import listed_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Window:
    """One side of a comparison.

    Attributes:
        trace: Its newest trace.
        name: Its path, steps and time, in words.
        steps: The mean step of each rank, by kind of iteration.
        devices: The names of their devices.
        torch: The versions of torch that ran them, if a manifest names any.
        remarks: Notes on it that do not change the meaning of its numbers.
        passed_over: The reasons why newer or other traces were not read.
    """

    trace: Path
    name: str
    steps: dict[int, dict[str, MeanStep]] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    torch: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)

    def read(self, trace: Path) -> None:
        """Add the trace of a rank, if it can be read."""
        try:
            self.add(MeasuredTrace(trace))
        except CaptureError as error:
            self.passed_over.append(str(error))

    def add(self, measured: MeasuredTrace) -> None:
        """Add the trace of a rank, unless another one of that rank was added before."""
        if measured.rank in self.steps:
            name = f"{measured.path}: another trace of rank {measured.rank}"
            self.passed_over.append(f"{name} is compared; give the path of this one to use it")
            return
        self.steps[measured.rank] = MeanStep.by_kind(measured)
        words = [*measured.truncation.sentences(), *measured.breakdown.earlier_sentence()]
        self.remarks += [f"{measured.path}: {one}" for one in words]
        if measured.device_name:
            self.devices.add(measured.device_name)
        if measured.manifest and (version := measured.manifest.versions.get("torch")):
            self.torch.add(f"torch {version}")

    def of(self, ranks: set[int], kind: str) -> MeanStep:
        """Return the mean step of some ranks, or their mean iteration of a kind."""
        found = (kinds.get(kind) for rank, kinds in self.steps.items() if rank in ranks)
        return MeanStep.of_ranks([step for step in found if step])

    def counts(self, ranks: set[int]) -> Counter[str]:
        """Return the number of iterations of each kind on some ranks."""
        found = Counter[str]()
        for rank in ranks:
            for kind, step in self.steps[rank].items():
                found[kind] += len(step.lengths)
        return found


@dataclass(frozen=True)
class Comparison:
    """The comparison of two captures.

    Attributes:
        names: Their paths, steps and times, in words.
        one: The mean step of the first one.
        other: The mean step of the second one.
        remarks: Notes on them that do not change the meaning of their numbers.
        passed_over: The reasons why traces were not read.
        other_devices: The devices on which they ran, in words; empty if these are the same.
    """

    names: tuple[str, str]
    one: MeanStep
    other: MeanStep
    remarks: list[str]
    passed_over: list[str]
    other_devices: str


def compare(first: Path, second: Path) -> Comparison:
    """Compare two captures; for windows of several ranks, the ranks that both have.

    Args:
        first: A trace, a folder, whose newest window is used, or the record of a window.
        second: Another one.

    Raises:
        CaptureError: There is no capture that can be read.
    """
    one, other = _read(first), _read(second)
    both = one.steps.keys() & other.steps.keys()
    ranks, others = both or set(one.steps), both or set(other.steps)
    counts, more = one.counts(ranks), other.counts(others)
    kind = _most(counts & more) or _most(counts)
    means = one.of(ranks, kind), other.of(others, kind if kind in more else _most(more))
    return Comparison(
        (one.name, other.name),
        *means,
        [
            *_same(one, other),
            *one.remarks,
            *other.remarks,
            *_other_names(one, other),
            *_ranks(one, other, both),
            *_kinds(*means, set(counts | more)),
        ],
        list(dict.fromkeys((*one.passed_over, *other.passed_over))),
        _that_differ(one.devices, other.devices),
    )


def _same(one: Window, other: Window) -> Iterator[str]:
    """Yield that both are the same window, if they are."""
    if one.trace.resolve() == other.trace.resolve():
        yield "1 and 2 are the same window; give the paths of two"


def _read(path: Path) -> Window:
    newest, problems = newest_measured(path)
    place = path if path.is_file() else newest.path.parent
    name = ": ".join(filter(None, (str(place), window_named(newest.manifest))))
    window = Window(newest.path, name, passed_over=list(problems.values()))
    traces = [trace for trace in window_below(path, newest.path) if trace not in problems]
    window.add(newest)
    for trace in traces:
        if trace != newest.path:
            window.read(trace)
    if not path.is_file() or len(traces) > 1:
        window.remarks += window_words(traces)
    return window


def _other_names(one: Window, other: Window) -> list[str]:
    """Return which devices and versions of torch differ; both change the names of kernels."""
    pairs = ((one.devices, other.devices), (one.torch, other.torch))
    found = [words for pair in pairs if (words := _that_differ(*pair))]
    if not found:
        return []
    advice = "kernels may have other names, so compare categories, modules and shapes"
    return [f"{'; '.join(found)}; {advice}"]


def _most(counts: Counter[str]) -> str:
    """Return the most frequent kind of iteration; empty if there is none."""
    return max(counts, key=lambda kind: counts[kind], default="")


def _kinds(one: MeanStep, other: MeanStep, kinds: set[str]) -> Iterator[str]:
    """Yield which iterations are compared, if others are not; and how their sizes differ."""
    if one.kind != other.kind or not one.kind:
        return
    noun = f"{one.kind} iterations"
    if rest := ", ".join(sorted(kinds - {one.kind})):
        yield f"compared: {len(one.lengths):,} {noun} in 1, {len(other.lengths):,} in 2; not {rest}"
    for what, first, second in zip(("requests", "tokens"), one.size, other.size, strict=True):
        if first and second and first != second:
            yield f"{noun} have {first:,g} and {second:,g} {what} (medians)"


def _that_differ(first: set[str], second: set[str]) -> str:
    """Return on what each of two windows ran; empty if it is the same or unknown."""
    if not (first and second) or first == second:
        return ""
    words = [" and ".join(sorted(names)) for names in (first, second)]
    return f"1 ran on {words[0]}, 2 on {words[1]}"


def _ranks(one: Window, other: Window, both: set[int]) -> list[str]:
    """Return which ranks are compared, unless it is obvious."""
    if not both:
        first, second = (listed_ranks(window.steps) for window in (one, other))
        return [f"1 is {first}, 2 {second}"]
    if len(both) == len(one.steps) == len(other.steps) == 1:
        return []
    mean = ", their mean" if len(both) > 1 else ""
    rest = (one.steps.keys() | other.steps.keys()) - both
    only = f"; only one of the two has {listed_ranks(rest)}" if rest else ""
    return [f"compared: {listed_ranks(both)}{mean}{only}"]
