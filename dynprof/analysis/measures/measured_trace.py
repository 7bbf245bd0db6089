"""One trace, read, with its manifest and all that is measured of it, each once it is asked for."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING

from dynprof.analysis.measures.code.backward import passes
from dynprof.analysis.measures.code.call_stacks import CallStacks
from dynprof.analysis.measures.code.call_tree import call_paths, call_tree
from dynprof.analysis.measures.code.marks import marks
from dynprof.analysis.measures.code.modules import modules
from dynprof.analysis.measures.communication.collectives import messages
from dynprof.analysis.measures.communication.point_to_point import RECEIVE, UNKNOWN, directions
from dynprof.analysis.measures.critical_path.critical_path import critical_path
from dynprof.analysis.measures.efficiency.flops import efforts, works
from dynprof.analysis.measures.efficiency.kernel_shapes import kernel_shapes
from dynprof.analysis.measures.efficiency.roofline import peak_of
from dynprof.analysis.measures.efficiency.sequences import kernel_sequences
from dynprof.analysis.measures.memory.memory_timeline import allocations
from dynprof.analysis.measures.timeline.breakdown import RECORDING, Breakdown
from dynprof.analysis.measures.timeline.kernels import kinds
from dynprof.analysis.measures.timeline.launches import launches
from dynprof.analysis.measures.timeline.operators import STEPS, averages, calls, operators
from dynprof.analysis.measures.timeline.outliers import outliers
from dynprof.analysis.measures.timeline.phases import phase_times
from dynprof.analysis.measures.timeline.read_trace import ReadTrace
from dynprof.analysis.measures.timeline.steps import (
    Receives,
    in_steps,
    marked_steps,
    step_times,
    whole_span,
)
from dynprof.analysis.measures.timeline.truncation import Truncation
from dynprof.analysis.measures.waiting.gaps import gaps
from dynprof.analysis.measures.waiting.host_waits import HostActivity
from dynprof.analysis.measures.waiting.idle import idle

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dynprof.analysis.measures.code.backward import Pass
    from dynprof.analysis.measures.code.call_tree import CallPaths, CallTree
    from dynprof.analysis.measures.code.marks import Marks
    from dynprof.analysis.measures.code.modules import Modules
    from dynprof.analysis.measures.communication.collectives import Messages
    from dynprof.analysis.measures.communication.point_to_point import Numbers
    from dynprof.analysis.measures.critical_path.critical_path import CriticalPath
    from dynprof.analysis.measures.efficiency.flops import Efforts, Work
    from dynprof.analysis.measures.efficiency.kernel_shapes import KernelShape
    from dynprof.analysis.measures.efficiency.roofline import Peak
    from dynprof.analysis.measures.efficiency.sequences import KernelSequence
    from dynprof.analysis.measures.memory.memory_timeline import Allocation
    from dynprof.analysis.measures.timeline.kernels import Kind
    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Average, Calls, Operators
    from dynprof.analysis.measures.timeline.phases import Phases
    from dynprof.analysis.measures.timeline.steps import MarkedStep, Step
    from dynprof.analysis.measures.waiting.gaps import Gaps
    from dynprof.analysis.measures.waiting.idle import Idle


_STEP_INDEPENDENT = (
    "path", "trace", "manifest", "operators", "launches", "sequences", "messages", "averages",
    "kinds", "directions", "truncation", "host_waits", "calls",
)  # fmt: skip
"""What is the same of some steps of a trace as of all."""


class MeasuredTrace(ReadTrace):
    """A trace that was read, and what is measured of it.

    Attributes:
        excluded_steps: Marked steps that are not measured, as others of the trace are alone.
    """

    excluded_steps: Sequence[MarkedStep] = ()

    def only(self, steps: Sequence[MarkedStep]) -> MeasuredTrace:
        """Return the same trace with what is measured of some of its steps alone."""
        chosen = copy.copy(self)
        known = {name: vars(self)[name] for name in _STEP_INDEPENDENT if name in vars(self)}
        vars(chosen).clear()
        vars(chosen).update(known, _partner=None, marked=list(steps))
        chosen.excluded_steps = [step for step in self.marked if step not in steps]
        return chosen

    def recording_ns(self, step: MarkedStep) -> int:
        """Return for how long the profiler itself held a step up; a device, kept it idle."""
        alone = self.only([step])
        if alone.idle is not None:
            return alone.idle.by_cause()[RECORDING]
        return round(alone.breakdown.time_in(alone.breakdown.causes[RECORDING]))

    @cached_property
    def outliers(self) -> list[MarkedStep]:
        """The steps that take far longer than the others, the longest first.

        None where the device is far behind: then a step of the host is none of the device.
        """
        if self.breakdown.behind:
            return []
        return [self.marked[place] for place in outliers([length for *_, length in self.marked])]

    @cached_property
    def without_outliers(self) -> MeasuredTrace:
        """The trace without its outliers; itself where it has none."""
        if not self.outliers:
            return self
        return self.only([step for step in self.marked if step not in self.outliers])

    @cached_property
    def operators(self) -> Operators:
        """The operators of the host."""
        return operators(self.trace, self.launches)

    @cached_property
    def launches(self) -> Launches:
        """What devices did, and which calls of the host started it."""
        return launches(self.trace)

    @cached_property
    def sequences(self) -> list[KernelSequence]:
        """Elementwise kernels that follow one another, those first that could save most."""
        return kernel_sequences(self.trace, self.launches)

    @cached_property
    def messages(self) -> Messages:
        """What is known of its collectives."""
        return messages(self.trace, self.launches)

    @cached_property
    def averages(self) -> list[Average]:
        """The operators of each name together, the one with the most time of its own first."""
        return averages(self.trace, self.operators)

    @property
    def work(self) -> list[Average]:
        """The same without the steps, whose own time is what no operator covers."""
        return [average for average in self.averages if average.name != STEPS]

    @cached_property
    def kinds(self) -> list[Kind]:
        """The kernels of each name together, or the operators where no device worked."""
        return kinds(self.trace, self.operators)

    @cached_property
    def steps(self) -> list[Step]:
        """Where the time of each step goes; none where something may be missing of any."""
        if self.truncation.incomplete:
            return []
        of = self.directions
        receives = Receives(of == RECEIVE, of == UNKNOWN)
        return step_times(self.trace, self.marked, self.launches, receives)

    @cached_property
    def directions(self) -> Numbers:
        """What of the communication is a message sent or received, for each span."""
        return directions(self.trace, self.launches)

    @cached_property
    def marks(self) -> Marks:
        """What the script marked."""
        return marks(self.trace)

    @cached_property
    def truncation(self) -> Truncation:
        """Where the file ends too early, and what is not known for that."""
        counted = self.manifest.steps.recorded if self.manifest else None
        return Truncation(self.trace, self.manifest, marked_steps(self.trace, counted))

    @cached_property
    def marked(self) -> list[MarkedStep]:
        """The steps as they are marked, as far as they are whole; else one for everything."""
        return self.truncation.complete_steps or whole_span(self.trace)

    @cached_property
    def in_steps(self) -> NDArray[np.bool_]:
        """Which of its spans belong to the steps."""
        return in_steps(self.trace, self.marked, self.launches)

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
        """Why the breakdown's device was idle in its steps; None where that is not known."""
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
        """The operators of the host together with the Python frames they lie in."""
        return calls(self.trace)

    @cached_property
    def paths(self) -> CallPaths:
        """The path that leads to each of them."""
        return call_paths(self.trace, self.calls)

    @cached_property
    def tree(self) -> CallTree:
        """The same by the path that leads to each."""
        return call_tree(self.trace, self.paths, self.marked)

    @cached_property
    def tree_on_device(self) -> CallTree:
        """The same with the time of what each started on a device."""
        return call_tree(self.trace, self.paths, self.marked, self.launches)

    @cached_property
    def efforts(self) -> Efforts:
        """What the operators had to do, from their inputs."""
        return efforts(self.trace, self.operators)

    @cached_property
    def works(self) -> list[Work]:
        """The same by operator and shapes, with the time that it took, the longest first."""
        return works(self.trace, self.operators, self.launches, self.efforts)

    @cached_property
    def modules(self) -> Modules:
        """What was spent along the tree of modules."""
        return modules(self.trace, self.operators, self.launches, self.efforts)

    @cached_property
    def passes(self) -> list[Pass]:
        """Backward passes by the operator that went forward."""
        return passes(self.trace, self.launches)

    @cached_property
    def kernel_shapes(self) -> list[KernelShape]:
        """How the kernels of each name were started."""
        return kernel_shapes(self.trace)

    @cached_property
    def peak(self) -> Peak | None:
        """What the device that worked can do at most; None where no table has it.

        Raises:
            CaptureError: The user's own table cannot be read.
        """
        return peak_of(self.device_name) if self.device_name else None

    @cached_property
    def critical_path(self) -> CriticalPath | None:
        """The longest path through the steps; None where something may be missing of any."""
        if self.truncation.incomplete:
            return None
        return self.compute_once(
            lambda: critical_path(self.trace, self.marked, self.launches, self.calls)
        )

    @cached_property
    def allocations(self) -> list[Allocation]:
        """Every allocation of tensor memory."""
        return allocations(self.trace)

    @cached_property
    def call_stacks(self) -> CallStacks:
        """What names the Python frames that an operator lies in, the innermost first."""
        return CallStacks(self.trace, self.operators, self.calls)
