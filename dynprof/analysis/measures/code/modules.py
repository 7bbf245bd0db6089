"""Time, memory and arithmetic along the tree of modules, or of labels where no module is seen.

What a backward pass does belongs to the module that went forward: the engine's call and the
operator that made its node bear the same sequence number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.code.backward import GRAPH, forward_operators
from dynprof.analysis.measures.timeline.launches import UNKNOWN, launched_by, open_at
from dynprof.analysis.measures.timeline.nesting import ROOT, own_time, parents
from dynprof.analysis.measures.timeline.operators import STEP
from dynprof.analysis.measures.timeline.steps import is_collective
from dynprof.analysis.reading.categories import FRAMES, LABELS, OPERATORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.efficiency.flops import Efforts
    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Operators
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

MODULE = "nn.Module: "
"""Kineto's names of modules' frames begin so."""
_COMMUNICATION = ("nccl:", "c10d::")
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True)
class Amounts:
    """What was spent in something; times in ns.

    Attributes:
        host: Time of the host.
        device: Time of what was started on devices.
        allocated: Bytes of the memory that was taken, whether given back or not.
        flops: Operations of arithmetic, as far as they are known.
    """

    host: int
    device: int
    allocated: int
    flops: int

    def __add__(self, other: Amounts) -> Amounts:
        """Return both together."""
        return Amounts(
            self.host + other.host,
            self.device + other.device,
            self.allocated + other.allocated,
            self.flops + other.flops,
        )


@dataclass(frozen=True)
class Module:
    """A module, or a label, at one place of the tree.

    Attributes:
        name: As the trace has it, such as ``Linear_0``.
        parent: The place of what it lies in; -1 for none.
        calls: How often it went forward.
        forward: What it spent itself going forward.
        backward: What it spent itself in backward passes.
        forward_total: What it and all in it spent going forward.
        backward_total: What it and all in it spent in backward passes.
    """

    name: str
    parent: int
    calls: int
    forward: Amounts
    backward: Amounts
    forward_total: Amounts
    backward_total: Amounts


@dataclass(frozen=True)
class Modules:
    """The tree of modules.

    Attributes:
        rows: Each module after what it lies in.
        of_labels: No module was recorded: the tree is of labels.
        outside: What belongs to none of them; its time of the host is not counted.
        device_unknown: Time of devices of which nobody knows what started it, in ns.
        with_flops: Shapes were recorded, so that operations of arithmetic could be counted.
    """

    rows: list[Module]
    of_labels: bool
    outside: Amounts
    device_unknown: int
    with_flops: bool


@dataclass(frozen=True)
class _Owners:
    """The frames of modules and the backward passes of operators, nested in each other.

    Attributes:
        span: Places in the trace's spans, in the order of their begin.
        parent: Places here of what each lies in.
        owner: Places in the tree of the modules that each belongs to; -1 for none.
        phase: Whether each is of a forward or a backward pass.
        tree: Name, as a place in the trace's names, and parent of each place in the tree.
    """

    span: Numbers
    parent: Numbers
    owner: Numbers
    phase: Numbers
    tree: list[tuple[int, int]]


def modules(trace: Trace, found: Operators, started: Launches, taken: Efforts) -> Modules:
    """Return what was spent along the tree of modules; the whole trace counts.

    Args:
        trace: The trace.
        found: Its operators.
        started: What devices did.
        taken: What the operators had to do.
    """
    frames = trace.category(FRAMES) & trace.named(lambda name: name.startswith(MODULE))
    of_labels = not frames.any()
    frames = _labels(trace) if of_labels else frames
    owners = _owners(trace, frames)
    sums = _Sums(trace, owners)
    sums.add("host", np.arange(len(owners.span)), _own_time(trace, owners))
    unknown = _add_device(trace, found, started, sums)
    memory = {name: trace.memory[name][trace.memory["bytes"] > 0] for name in trace.memory}
    sums.add("allocated", sums.at(memory["thread"], memory["time"]), memory["bytes"])
    known = [one.flops or 0 for one in taken.known]
    flops = np.array([*known, 0], np.int64)[taken.code]
    span = found.span[taken.place]
    sums.add("flops", sums.at(trace.spans["thread"][span], trace.spans["start"][span]), flops)
    rows, outside = sums.rows(frames)
    return Modules(rows, of_labels, outside, unknown, with_flops=len(trace.tables["dims"]) > 1)


def _labels(trace: Trace) -> NDArray[np.bool_]:
    """Return the ranges that may stand for modules: not steps, not communication."""

    def test(name: str) -> bool:
        return not (name.startswith((STEP, *_COMMUNICATION)) or is_collective(name))

    return trace.category(LABELS) & trace.named(test)


def _owners(trace: Trace, frames: NDArray[np.bool_]) -> _Owners:
    """Return whose time it is while modules, or labels, and backward passes of operators run."""
    graph = trace.category(OPERATORS) & trace.named(lambda name: name.startswith(GRAPH))
    graph &= trace.spans["sequence"] >= 0
    span = np.flatnonzero(frames | graph)
    start, length, thread = (trace.spans[name][span] for name in ("start", "length", "thread"))
    parent = parents(start, length, thread)
    went = forward_operators(trace, np.flatnonzero(graph))
    seen = went != UNKNOWN
    at = np.full(len(went), ROOT, np.int64)
    at[seen] = open_at(
        trace, span, parent, trace.spans["thread"][went[seen]], trace.spans["start"][went[seen]]
    )
    forward = iter(zip(seen.tolist(), at.tolist(), strict=True))
    tree: dict[tuple[int, int], int] = {}
    owner: list[int] = []
    phase: list[int] = []
    columns = (graph[span].tolist(), parent.tolist(), trace.spans["name"][span].tolist())
    for is_graph, outer, name in zip(*columns, strict=True):
        above, passing = (ROOT, FORWARD) if outer == ROOT else (owner[outer], phase[outer])
        if not is_graph:
            above, passing = tree.setdefault((above, name), len(tree)), FORWARD
        else:
            is_seen, place = next(forward)
            if is_seen:
                above, passing = (ROOT if place == ROOT else owner[place]), BACKWARD
        owner.append(above)
        phase.append(passing)
    return _Owners(
        span=span,
        parent=parent,
        owner=np.array(owner, np.int64),
        phase=np.array(phase, np.int64),
        tree=[(name, above) for above, name in tree],
    )


def _own_time(trace: Trace, owners: _Owners) -> Numbers:
    """Return what is left of each without what lies in it; what crosses ends with the outer one."""
    start, length = (trace.spans[name][owners.span] for name in ("start", "length"))
    end = (start + length).tolist()
    for place, outer in enumerate(owners.parent.tolist()):
        if outer != ROOT:
            end[place] = min(end[place], end[outer])
    return own_time(np.array(end, np.int64) - start, owners.parent)


def _add_device(trace: Trace, found: Operators, started: Launches, sums: _Sums) -> int:
    """Add the time of devices; return how much of it nobody knows the launch of."""
    by = launched_by(trace, started, found.span, found.parent)
    operator = np.append(found.span, UNKNOWN)[by]
    moment = np.where(started.call != UNKNOWN, started.call, operator)
    times, known = trace.spans["length"][started.work], moment != UNKNOWN
    when = (trace.spans[name][moment[known]] for name in ("thread", "start"))
    sums.add("device", sums.at(*when), times[known])
    return int(times[~known].sum())


class _Sums:
    """Adds up what was spent by module and phase; the last place is for what belongs to none."""

    def __init__(self, trace: Trace, owners: _Owners) -> None:
        self._trace, self._owners = trace, owners
        self._count = 2 * len(owners.tree) + 1
        key = 2 * owners.owner + owners.phase
        self._key = np.append(np.where(owners.owner == ROOT, self._count - 1, key), self._count - 1)
        names = ("host", "device", "allocated", "flops")
        self._amounts = {name: np.zeros(self._count, np.int64) for name in names}

    def at(self, thread: Numbers, when: Numbers) -> Numbers:
        """Return the innermost span of modules and backward passes that was open; -1 for none."""
        return open_at(self._trace, self._owners.span, self._owners.parent, thread, when)

    def add(self, name: str, place: Numbers, amount: Numbers) -> None:
        """Add amounts that were spent inside spans; -1 stands for outside of all."""
        np.add.at(self._amounts[name], self._key[place], amount)

    def rows(self, is_module: NDArray[np.bool_]) -> tuple[list[Module], Amounts]:
        """Return the tree, and what belongs to none of it."""
        owners = self._owners
        one = [Amounts(*each) for each in zip(*map(_listed, self._amounts.values()), strict=True)]
        outside, own = one.pop(), [one[::2], one[1::2]]
        total = [list(amounts) for amounts in own]
        for place in range(len(owners.tree) - 1, -1, -1):
            above = owners.tree[place][1]
            if above != ROOT:
                for sums in total:
                    sums[above] += sums[place]
        calls = np.bincount(owners.owner[is_module[owners.span]], minlength=len(owners.tree))
        names = self._trace.tables["name"]
        rows = [
            Module(
                name=names[name].removeprefix(MODULE),
                parent=above,
                calls=int(calls[place]),
                forward=own[FORWARD][place],
                backward=own[BACKWARD][place],
                forward_total=total[FORWARD][place],
                backward_total=total[BACKWARD][place],
            )
            for place, (name, above) in enumerate(owners.tree)
        ]
        return rows, outside


def _listed(column: Numbers) -> list[int]:
    found: list[int] = column.tolist()
    return found
