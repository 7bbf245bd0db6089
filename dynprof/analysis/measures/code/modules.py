"""Time, memory and arithmetic along the tree of modules, or of labels if no module was recorded.

A backward pass counts for the module of its forward pass. The engine's call and the operator that
created its node have the same sequence number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.code.backward import GRAPH, forward_operators
from dynprof.analysis.measures.timeline.categories import communicates
from dynprof.analysis.measures.timeline.launches import UNKNOWN, launched_by, open_at
from dynprof.analysis.measures.timeline.nesting import ROOT, own_time, parents
from dynprof.analysis.measures.timeline.operators import is_step
from dynprof.analysis.reading.events import FRAMES, LABELS, OPERATORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.efficiency.flops import Efforts
    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Operators
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

MODULE = "nn.Module: "
"""Kineto's prefix of the names of modules' frames."""
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True)
class Amounts:
    """Resources used; times in ns.

    Attributes:
        host: Time on the host.
        device: Device time that was launched.
        allocated: Bytes of memory allocated, released or not.
        flops: Arithmetic operations, as far as they are known.
    """

    host: int
    device: int
    allocated: int
    flops: int

    def __add__(self, other: Amounts) -> Amounts:
        """Return the sum of both."""
        return Amounts(
            self.host + other.host,
            self.device + other.device,
            self.allocated + other.allocated,
            self.flops + other.flops,
        )


@dataclass(frozen=True)
class Module:
    """A module, or a label, as a node of the tree.

    Attributes:
        name: Its name in the trace, such as ``Linear_0``.
        parent: Index of its parent; -1 for none.
        calls: The number of forward calls.
        forward: What it used itself in forward calls.
        backward: What it used itself in backward passes.
        forward_total: What it and its descendants used in forward calls.
        backward_total: What it and its descendants used in backward passes.
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
        rows: The modules, parents first.
        of_labels: Whether the tree is of labels, because no module was recorded.
        outside: What belongs to none of them; host time is not counted there.
        device_unknown: Device time of unknown origin, in ns.
        with_flops: Whether shapes were recorded, so that arithmetic could be counted.
    """

    rows: list[Module]
    of_labels: bool
    outside: Amounts
    device_unknown: int
    with_flops: bool


@dataclass(frozen=True)
class _Owners:
    """The frames of modules and the backward passes of operators, with their nesting.

    Attributes:
        span: Indices into the trace's spans, in order of start.
        parent: Index here of the parent of each.
        owner: Index in the tree of the module that each belongs to; -1 for none.
        phase: Whether each is of a forward or a backward pass.
        tree: For each node of the tree, the index of its name in the trace's names, and its parent.
    """

    span: Numbers
    parent: Numbers
    owner: Numbers
    phase: Numbers
    tree: list[tuple[int, int]]


def modules(trace: Trace, found: Operators, started: Launches, taken: Efforts) -> Modules:
    """Return what was used along the tree of modules, over the whole trace.

    Args:
        trace: The trace.
        found: Its operators.
        started: Device activities and their launches.
        taken: The work of the operators.
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
    """Return the labels to use in place of modules: all but steps and communication."""

    def test(name: str) -> bool:
        return not (is_step(name) or communicates(name))

    return trace.category(LABELS) & trace.named(test)


def _owners(trace: Trace, frames: NDArray[np.bool_]) -> _Owners:
    """Return the owners of the time in modules, or labels, and in backward passes of operators."""
    graph = trace.category(OPERATORS) & trace.named(lambda name: name.startswith(GRAPH))
    graph &= trace.spans["sequence"] >= 0
    span = np.flatnonzero(frames | graph)
    start, length, thread = (trace.spans[name][span] for name in ("start", "length", "thread"))
    parent = parents(start, length, thread)
    origin = forward_operators(trace, np.flatnonzero(graph))
    seen = origin != UNKNOWN
    at = np.full(len(origin), ROOT, np.int64)
    at[seen] = open_at(
        trace, span, parent, trace.spans["thread"][origin[seen]], trace.spans["start"][origin[seen]]
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
    """Return the own time of each. A span that crosses its parent's end counts as ending there."""
    start, length = (trace.spans[name][owners.span] for name in ("start", "length"))
    end = (start + length).tolist()
    for place, outer in enumerate(owners.parent.tolist()):
        if outer != ROOT:
            end[place] = min(end[place], end[outer])
    return own_time(np.array(end, np.int64) - start, owners.parent)


def _add_device(trace: Trace, found: Operators, started: Launches, sums: _Sums) -> int:
    """Add the device time; return the part of it without a known launch."""
    by = launched_by(trace, started, found.span, found.parent)
    operator = np.append(found.span, UNKNOWN)[by]
    moment = np.where(started.call != UNKNOWN, started.call, operator)
    times, known = trace.spans["length"][started.work], moment != UNKNOWN
    when = (trace.spans[name][moment[known]] for name in ("thread", "start"))
    sums.add("device", sums.at(*when), times[known])
    return int(times[~known].sum())


class _Sums:
    """Sums by module and phase; the last element is for what belongs to none."""

    def __init__(self, trace: Trace, owners: _Owners) -> None:
        self._trace, self._owners = trace, owners
        self._count = 2 * len(owners.tree) + 1
        key = 2 * owners.owner + owners.phase
        self._key = np.append(np.where(owners.owner == ROOT, self._count - 1, key), self._count - 1)
        names = ("host", "device", "allocated", "flops")
        self._amounts = {name: np.zeros(self._count, np.int64) for name in names}

    def at(self, thread: Numbers, when: Numbers) -> Numbers:
        """Return the innermost open span of modules and backward passes; -1 for none."""
        return open_at(self._trace, self._owners.span, self._owners.parent, thread, when)

    def add(self, name: str, place: Numbers, amount: Numbers) -> None:
        """Add amounts used inside spans; index -1 means outside of all."""
        np.add.at(self._amounts[name], self._key[place], amount)

    def rows(self, is_module: NDArray[np.bool_]) -> tuple[list[Module], Amounts]:
        """Return the tree, and what belongs to none of its nodes."""
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
