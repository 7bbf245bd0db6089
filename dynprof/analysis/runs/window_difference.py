"""Two windows against each other: their ranks on average, each with the same ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.analysis.measures.difference import MeanStep
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.newest import newest_measured
from dynprof.analysis.runs.window import window_below, window_words
from dynprof.errors import CaptureError
from dynprof.runtime.plural import listed_ranks

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Window:
    """One side of a comparison.

    Attributes:
        steps: What a step of each rank takes.
        devices: The names of what they ran on.
        remarks: What is to be known of it, though its numbers mean the same.
        passed_over: Why newer or other traces were not read.
    """

    steps: dict[int, MeanStep] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)

    def read(self, trace: Path) -> None:
        """Add what a rank recorded, if that can be read."""
        try:
            self.add(MeasuredTrace(trace))
        except CaptureError as error:
            self.passed_over.append(str(error))

    def add(self, measured: MeasuredTrace) -> None:
        """Add what a rank recorded."""
        self.steps[measured.rank] = MeanStep.of(measured)
        self.remarks += [f"{measured.path}: {words}" for words in measured.truncation.sentences()]
        if measured.device_name:
            self.devices.add(measured.device_name)

    def of(self, ranks: set[int]) -> MeanStep:
        """Return what a step of some ranks takes on average."""
        return MeanStep.of_ranks([step for rank, step in self.steps.items() if rank in ranks])


@dataclass(frozen=True)
class Comparison:
    """Two captures side by side.

    Attributes:
        one: What a step of the first takes.
        other: What one of the second takes.
        remarks: What is to be known of them, though their numbers mean the same.
        passed_over: Why traces were not read.
    """

    one: MeanStep
    other: MeanStep
    remarks: list[str]
    passed_over: list[str]


def compare(first: Path, second: Path) -> Comparison:
    """Compare two captures; of windows of several ranks, those ranks that both have.

    Args:
        first: A trace, a folder, of which the newest window is taken, or the record of a window.
        second: Another.

    Raises:
        CaptureError: There is no capture, or none that can be read.
    """
    one, other = _read(first), _read(second)
    both = one.steps.keys() & other.steps.keys()
    return Comparison(
        one.of(both or set(one.steps)),
        other.of(both or set(other.steps)),
        [*one.remarks, *other.remarks, *_devices(one, other), *_ranks(one, other, both)],
        list(dict.fromkeys((*one.passed_over, *other.passed_over))),
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


def _devices(one: Window, other: Window) -> list[str]:
    if not one.devices or not other.devices or one.devices == other.devices:
        return []
    first, second = (" and ".join(sorted(window.devices)) for window in (one, other))
    return [f"1 ran on {first}, 2 on {second}: kernels may bear other names"]


def _ranks(one: Window, other: Window, both: set[int]) -> list[str]:
    """Say which ranks are compared, where that is not plain."""
    if not both:
        first, second = (listed_ranks(window.steps) for window in (one, other))
        return [f"1 is {first}, 2 {second}"]
    if len(both) == len(one.steps) == len(other.steps) == 1:
        return []
    mean = ", their mean" if len(both) > 1 else ""
    rest = (one.steps.keys() | other.steps.keys()) - both
    only = f"; only one of the two has {listed_ranks(rest)}" if rest else ""
    return [f"compared: {listed_ranks(both)}{mean}{only}"]
