"""One trace with its manifest and all its measures, each computed on first use."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.communication import RECEIVE, UNKNOWN_DIRECTION, directions, messages
from dynprof.analysis.measures.critical_path import critical_path, main_thread
from dynprof.analysis.measures.flops import operator_costs, operator_work, peak_of
from dynprof.analysis.measures.idle import HostActivity, gaps, idle
from dynprof.analysis.measures.kernel_shapes import (
    kernel_shapes,
    operator_counters,
    operator_kernels,
)
from dynprof.analysis.measures.marks import marks
from dynprof.analysis.measures.memory import allocations
from dynprof.analysis.measures.modules import modules, passes
from dynprof.analysis.measures.sequences import kernel_sequences
from dynprof.analysis.measures.timeline.breakdown import RECORDING, Breakdown
from dynprof.analysis.measures.timeline.iteration_labels import iterations
from dynprof.analysis.measures.timeline.kernels import categories, category_times, kinds
from dynprof.analysis.measures.timeline.launches import UNKNOWN, launched_by
from dynprof.analysis.measures.timeline.operators import (
    ITERATIONS,
    STEPS,
    averages,
    calls,
    operators,
)
from dynprof.analysis.measures.timeline.phase_times import phase_times
from dynprof.analysis.measures.timeline.read_trace import ReadTrace, Truncation
from dynprof.analysis.measures.timeline.steps import (
    Receives,
    from_before,
    in_steps,
    iteration_times,
    marked_steps,
    outliers_by_kind,
    step_times,
    whole_span,
)
from dynprof.analysis.measures.user_code import CallStacks, call_paths, call_tree
from dynprof.analysis.reading.spans import both, clipped, cover, without

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.communication import Messages, Numbers
    from dynprof.analysis.measures.critical_path import CriticalPath
    from dynprof.analysis.measures.flops import OperatorCosts, OperatorWork, Peak
    from dynprof.analysis.measures.idle import Gaps, Idle
    from dynprof.analysis.measures.kernel_shapes import (
        KernelShape,
        OperatorCounters,
        OperatorKernel,
    )
    from dynprof.analysis.measures.marks import Marks
    from dynprof.analysis.measures.memory import Allocation
    from dynprof.analysis.measures.modules import Modules, Pass
    from dynprof.analysis.measures.sequences import KernelSequence
    from dynprof.analysis.measures.timeline.iteration_labels import Iteration
    from dynprof.analysis.measures.timeline.kernels import CategoryTime, Kind
    from dynprof.analysis.measures.timeline.operators import Average, Calls, Operators
    from dynprof.analysis.measures.timeline.phase_times import Phases
    from dynprof.analysis.measures.timeline.steps import IterationTime, MarkedStep, Step
    from dynprof.analysis.measures.user_code import CallPaths, CallTree
    from dynprof.analysis.reading.spans import Cover


_STEP_INDEPENDENT = (
    "path", "trace", "manifest", "operators", "launches", "launchers", "category_codes",
    "sequences", "messages", "averages", "kinds", "directions", "truncation", "host_waits", "calls",
    "iterations", "iteration_times", "from_before",
)  # fmt: skip
"""Measures that do not depend on the choice of steps."""


class MeasuredTrace(ReadTrace):
    """A trace and its measures.

    Attributes:
        excluded_steps: Marked steps that are not measured, because :meth:`only` left them out.
    """

    excluded_steps: Sequence[MarkedStep] = ()

    def only(self, steps: Sequence[MarkedStep]) -> MeasuredTrace:
        """Return the same trace, measured over some of its steps only."""
        _ = self.iteration_times  # of all iterations, also those that are left out
        chosen = copy.copy(self)
        known = {name: vars(self)[name] for name in _STEP_INDEPENDENT if name in vars(self)}
        vars(chosen).clear()
        vars(chosen).update(known, _partner=None, marked=list(steps))
        chosen.excluded_steps = [step for step in self.marked if step not in steps]
        return chosen

    def recording_ns(self, step: MarkedStep) -> int:
        """Return how long the profiler itself delayed a step, or kept the device idle in it."""
        alone = self.only([step])
        if alone.idle is not None:
            return alone.idle.by_cause()[RECORDING]
        return round(alone.breakdown.time_in(alone.breakdown.causes[RECORDING]))

    @cached_property
    def outliers(self) -> list[MarkedStep]:
        """The steps that take far longer than the others of their kind, the longest first.

        Empty if the device is far behind: then steps of the host are not steps of the device.
        """
        if self.breakdown.behind:
            return []
        labels = [self.iterations.get(step) for step in self.marked]
        found = outliers_by_kind(
            [self.worked(step) for step in self.marked],
            [label.kind if label else "" for label in labels],
            [label.tokens if label else None for label in labels],
        )
        return [self.marked[place] for place in found]

    @cached_property
    def without_outliers(self) -> MeasuredTrace:
        """The trace without its outliers; the trace itself if it has none."""
        if not self.outliers:
            return self
        return self.only([step for step in self.marked if step not in self.outliers])

    def others_like(self, step: MarkedStep) -> MeasuredTrace:
        """Return the trace without its outliers; of iterations, only those of a step's kind."""
        usual = self.without_outliers
        if not (label := self.iterations.get(step)):
            return usual
        return self.only([one for one in usual.marked if self.iterations[one].kind == label.kind])

    def took(self, step: MarkedStep) -> int:
        """Return how long a step took; of an iteration, until its device work was done."""
        one = self.iteration_times.get(step)
        return one.time if one else step[2]

    def worked(self, step: MarkedStep) -> int:
        """Return how long a step took without the host's waits for work from before the recording.

        Such a wait makes no step an outlier.
        """
        if step in self.iteration_times:
            return self.took(step)
        _, begin, length = step
        inside = [clipped(where, begin, begin + length) for where in self._waits_for_earlier]
        return length - both(*inside)

    @cached_property
    def _waits_for_earlier(self) -> tuple[Cover, Cover]:
        """When the device ran only work from before the recording, and when the host waited."""
        waits = self.host_waits.blocking(main_thread(self.trace))
        return self.breakdown.earlier, (waits.start, waits.end)

    @cached_property
    def iterations(self) -> dict[MarkedStep, Iteration]:
        """What the labels of its iterations say; empty if its steps are not iterations."""
        found = iterations(self.trace)
        return found if self.marked and self.marked[0] in found else {}

    @cached_property
    def iteration_times(self) -> dict[MarkedStep, IterationTime]:
        """The times of its iterations, on the breakdown's device; empty for other steps."""
        if not self.iterations:
            return {}
        device = None if self.breakdown.on_host else self.breakdown.device
        return iteration_times(self.iterations, self.steps, device, *self._waits_for_earlier)

    @cached_property
    def operators(self) -> Operators:
        """The operators of the host."""
        return operators(self.trace, self.launches)

    @cached_property
    def launchers(self) -> Numbers:
        """For each activity of :attr:`launches` the index of its operator; -1 if unknown."""
        found = self.operators
        return launched_by(self.trace, self.launches, found.span, found.parent)

    @cached_property
    def categories(self) -> list[CategoryTime]:
        """Device time by category of kernels, the most first."""
        return category_times(self.trace, self.launches, self.category_codes)

    @cached_property
    def category_codes(self) -> Numbers:
        """The category of each activity of :attr:`launches`, as an index in ``CATEGORIES``."""
        names = np.append(self.trace.spans["name"][self.operators.span], UNKNOWN)
        return categories(self.trace, self.launches, names[self.launchers])

    @cached_property
    def operator_kernels(self) -> list[OperatorKernel]:
        """Device activities by operator, its shapes, and kernel, the most time first."""
        return operator_kernels(
            self.trace, self.operators, self.launches, self.launchers, self.category_codes,
            self.call_stacks.number,
        )  # fmt: skip

    @cached_property
    def operator_counters(self) -> list[OperatorCounters]:
        """CUPTI's counters by operator, its shapes, and kernel; empty if none was recorded."""
        return operator_counters(self.trace, self.operators)

    @cached_property
    def sequences(self) -> list[KernelSequence]:
        """Sequences of elementwise kernels, the largest possible saving first."""
        return kernel_sequences(self.trace, self.launches)

    @cached_property
    def messages(self) -> Messages:
        """What is known about its collectives."""
        return messages(self.trace, self.launches)

    @cached_property
    def averages(self) -> list[Average]:
        """Totals of the operators by name, the most self time first."""
        return averages(self.trace, self.operators)

    @property
    def work(self) -> list[Average]:
        """:attr:`averages` without the steps, whose self time is what no operator covers."""
        return [average for average in self.averages if average.name not in (STEPS, ITERATIONS)]

    @cached_property
    def kinds(self) -> list[Kind]:
        """Totals of the kernels by name, or of the operators if no device worked."""
        return kinds(self.trace, self.operators)

    @cached_property
    def steps(self) -> list[Step]:
        """Where the time of each step goes; empty if events of any step may be missing."""
        if self.truncation.incomplete:
            return []
        of = self.directions
        receives = Receives(of == RECEIVE, of == UNKNOWN_DIRECTION)
        return step_times(self.trace, self.marked, self.launches, receives)

    @cached_property
    def directions(self) -> Numbers:
        """For each span, whether it sends or receives a message."""
        return directions(self.trace, self.launches)

    @cached_property
    def marks(self) -> Marks:
        """What the script marked."""
        return marks(self.trace)

    @cached_property
    def truncation(self) -> Truncation:
        """Where the file is truncated, and what is unknown because of that."""
        counted = self.manifest.steps.recorded if self.manifest else None
        return Truncation(self.trace, self.manifest, marked_steps(self.trace, counted))

    @cached_property
    def marked(self) -> list[MarkedStep]:
        """The complete marked steps; else one step for the whole trace."""
        return self.truncation.complete_steps or whole_span(self.trace)

    @cached_property
    def in_steps(self) -> NDArray[np.bool_]:
        """Which of its spans belong to the steps."""
        return in_steps(self.trace, self.marked, self.launches)

    @cached_property
    def from_before(self) -> NDArray[np.bool_]:
        """Which of its spans are work from before the recording, which belongs to no step."""
        return from_before(self.trace, self.marked, self.launches)

    @cached_property
    def phases(self) -> list[Phases]:
        """How long each phase of each marked step took."""
        return phase_times(self.trace, self.marked)

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of the mean step goes."""
        return Breakdown(self)

    @cached_property
    def host_waits(self) -> HostActivity:
        """What keeps the threads of the host from launching."""
        return HostActivity(self.trace, self.launches)

    @cached_property
    def idle(self) -> Idle | None:
        """Why the breakdown's device was idle in its steps; None if that is unknown."""
        steps = self.breakdown
        if steps.on_host or self.truncation.incomplete:
            return None
        recorded = self.marked if steps.marked else ()
        found = idle(self.trace, self.launches, self.host_waits, self.gaps, recorded)
        return found.within(steps.steps)

    @cached_property
    def gaps(self) -> Gaps:
        """When the breakdown's device ran nothing."""
        return gaps(self.trace, self.launches, self.marked, self.breakdown.device)

    @cached_property
    def calls(self) -> Calls:
        """The operators of the host together with Python frames."""
        return calls(self.trace)

    @cached_property
    def paths(self) -> CallPaths:
        """The call path of each operator and frame."""
        return call_paths(self.trace, self.calls)

    @cached_property
    def tree(self) -> CallTree:
        """Time on the host by call path."""
        return call_tree(self.trace, self.paths, self.marked)

    @cached_property
    def tree_on_device(self) -> CallTree:
        """Time on devices by the call path that launched it."""
        return call_tree(self.trace, self.paths, self.marked, self.launches)

    @cached_property
    def operator_costs(self) -> OperatorCosts:
        """The work of the operators, computed from their inputs."""
        return operator_costs(self.trace, self.operators)

    @cached_property
    def operator_work(self) -> list[OperatorWork]:
        """The same by operator and shapes, with the time taken, the longest first."""
        return operator_work(self.trace, self.operators, self.launches, self.operator_costs)

    @cached_property
    def modules(self) -> Modules:
        """Time, memory and FLOPs along the tree of modules."""
        return modules(self.trace, self.operators, self.launches, self.operator_costs)

    @cached_property
    def passes(self) -> list[Pass]:
        """Backward passes by the forward operator."""
        return passes(self.trace, self.launches)

    @cached_property
    def kernel_shapes(self) -> list[KernelShape]:
        """Launch configurations of the kernels of each name."""
        return kernel_shapes(self.trace)

    @cached_property
    def peak(self) -> Peak | None:
        """The peaks of the device that worked; None if no table has it.

        Raises:
            CaptureError: The user's own table cannot be read.
        """
        sizes = self.device_memory
        memory = sizes.get(int(self.breakdown.device), max(sizes.values(), default=0))
        return peak_of(self.device_name, memory) if self.device_name else None

    @cached_property
    def critical_path(self) -> CriticalPath | None:
        """The longest path through the steps; None if events of any step may be missing."""
        if self.truncation.incomplete:
            return None
        given = (self.trace, self.marked, self.launches, self.calls)
        behind, waits = self.breakdown.behind, self._waits_between_iterations
        return self.compute_once(lambda: critical_path(*given, behind=behind, waits=waits))

    @property
    def _waits_between_iterations(self) -> Cover | None:
        """When a server waits for work from before the recording: between two iterations.

        Which call waits is often not recorded. None for other steps, which follow each other.
        """
        if not self.iterations or self.breakdown.on_host:
            return None
        begins = np.array([begin for _, begin, _ in self.marked], np.int64)
        ends = begins + np.array([length for *_, length in self.marked], np.int64)
        return without(self.breakdown.earlier, cover(begins, ends))

    @cached_property
    def allocations(self) -> list[Allocation]:
        """Every allocation of tensor memory."""
        return allocations(self.trace)

    @cached_property
    def call_stacks(self) -> CallStacks:
        """The Python frames around each operator, the innermost first."""
        return CallStacks(self.trace, self.operators, self.calls)
