"""Compares two windows by the mean step of the ranks that both have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.analysis.measures.difference import MeanStep
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.recorded_window import newest_measured, window_below, window_words
from dynprof.errors import CaptureError
from dynprof.runtime.plural import listed_ranks

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Window:
    """One side of a comparison.

    Attributes:
        steps: The mean step of each rank.
        devices: The names of their devices.
        torch: The versions of torch that ran them, if a manifest names any.
        remarks: Notes on it that do not change the meaning of its numbers.
        passed_over: The reasons why newer or other traces were not read.
    """

    steps: dict[int, MeanStep] = field(default_factory=dict)
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
        self.steps[measured.rank] = MeanStep.of(measured)
        self.remarks += [f"{measured.path}: {words}" for words in measured.truncation.sentences()]
        if measured.device_name:
            self.devices.add(measured.device_name)
        if measured.manifest and (version := measured.manifest.versions.get("torch")):
            self.torch.add(f"torch {version}")

    def of(self, ranks: set[int]) -> MeanStep:
        """Return the mean step of some ranks."""
        return MeanStep.of_ranks([step for rank, step in self.steps.items() if rank in ranks])


@dataclass(frozen=True)
class Comparison:
    """The comparison of two captures.

    Attributes:
        one: The mean step of the first one.
        other: The mean step of the second one.
        remarks: Notes on them that do not change the meaning of their numbers.
        passed_over: The reasons why traces were not read.
        other_devices: The devices on which they ran, in words; empty if these are the same.
    """

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
    return Comparison(
        one.of(both or set(one.steps)),
        other.of(both or set(other.steps)),
        [*one.remarks, *other.remarks, *_other_names(one, other), *_ranks(one, other, both)],
        list(dict.fromkeys((*one.passed_over, *other.passed_over))),
        _that_differ(one.devices, other.devices),
    )


def _read(path: Path) -> Window:
    newest, problems = newest_measured(path)
    window = Window(passed_over=list(problems.values()))
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
