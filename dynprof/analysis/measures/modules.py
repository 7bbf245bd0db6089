"""Time, memory and arithmetic along the tree of modules, or of labels if no module was recorded.

A backward pass counts for the module of its forward pass. The engine's call and the operator that
created its node have the same sequence number. Forward work that runs again in a backward pass
counts for a root of its own, with the modules that are called again below it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.kernels import communicates
from dynprof.analysis.measures.timeline.launches import (
    UNKNOWN,
    Launches,
    innermost,
    launched_by,
    open_at,
)
from dynprof.analysis.measures.timeline.operators import device_time, is_step
from dynprof.analysis.measures.timeline.phase_times import (
    GRAPH,
    MODULE,
    RECOMPUTATION,
    engine_calls,
    recomputed,
    span_parents,
)
from dynprof.analysis.reading.events import FRAMES, LABELS, OPERATORS
from dynprof.analysis.reading.spans import ROOT, parents, self_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.flops import OperatorCosts
    from dynprof.analysis.measures.timeline.operators import Operators
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]
    Chosen = NDArray[np.bool_]

FORWARD, BACKWARD = 0, 1
"""Passes, as indexes."""


@dataclass(frozen=True)
class Amounts:
    """Resources used; times in ns.

    Attributes:
        host: Time on the host.
        device: Device time that was launched.
        allocated: Bytes of memory allocated, released or not.
        flops: Arithmetic operations, as far as they are known.
        uncounted: Device time of work whose arithmetic is unknown.
    """

    host: int
    device: int
    allocated: int
    flops: int
    uncounted: int

    @property
    def known_flops(self) -> int | None:
        """The arithmetic operations; None if that of most of the device's work is unknown."""
        return None if 2 * self.uncounted > self.device else self.flops

    def __add__(self, other: Amounts) -> Amounts:
        """Return the sum of both."""
        return Amounts(
            self.host + other.host,
            self.device + other.device,
            self.allocated + other.allocated,
            self.flops + other.flops,
            self.uncounted + other.uncounted,
        )


@dataclass(frozen=True)
class Module:
    """A module, or a label, as a node of the tree.

    Attributes:
        name: Its name in the trace, such as ``Linear_0``.
        parent: Index of its parent; -1 for none.
        calls: The number of forward calls; of recomputation, the number of graph nodes in which
            it ran.
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
class ModuleTime:
    """What a module, or a label, took itself in forward calls and backward passes; times in ns.

    Attributes:
        path: The names on the way to it in the tree, the root first.
        calls: How many of its frames, or labels, were recorded.
        host: Its time on the host.
        device: Device time that it launched.
    """

    path: tuple[str, ...]
    calls: int
    host: int
    device: int


@dataclass(frozen=True)
class _Owners:
    """Frames of modules, backward passes of operators, recomputed operators, with their nesting.

    Attributes:
        span: Indices into the trace's spans, in order of start.
        parent: Index here of the parent of each.
        owner: Index in the tree of the module that each belongs to; -1 for none.
        phase: Whether each is of a forward or a backward pass.
        tree: For each node of the tree, the index of its name in the trace's names, and its parent.
        calls: For each node of the tree, how often it was called.
    """

    span: Numbers
    parent: Numbers
    owner: Numbers
    phase: Numbers
    tree: list[tuple[int, int]]
    calls: Counter[int]


def modules(trace: Trace, found: Operators, started: Launches, taken: OperatorCosts) -> Modules:
    """Return what was used along the tree of modules, over the whole trace.

    Args:
        trace: The trace.
        found: Its operators.
        started: Device activities and their launches.
        taken: The work of the operators.
    """
    frames, of_labels = _frames(trace)
    owners = _owners(trace, frames)
    sums = _Sums(trace, owners)
    self_ns = self_time(trace.spans["length"][owners.span], owners.parent)
    sums.add("host", np.arange(len(owners.span)), self_ns)
    unknown = _add_device(trace, found, started, taken, sums)
    memory = {name: trace.memory[name][trace.memory["bytes"] > 0] for name in trace.memory}
    sums.add("allocated", sums.at(memory["thread"], memory["time"]), memory["bytes"])
    known = [one.flops or 0 for one in taken.known]
    flops = np.array([*known, 0], np.int64)[taken.code]
    span = found.span[taken.place]
    sums.add("flops", sums.at(trace.spans["thread"][span], trace.spans["start"][span]), flops)
    rows, outside = sums.rows()
    return Modules(rows, of_labels, outside, unknown, with_flops=len(trace.tables["dims"]) > 1)


def module_times(
    trace: Trace, found: Operators, started: Launches, counted: NDArray[np.bool_]
) -> tuple[list[ModuleTime], bool]:
    """Return what each module took in some spans only, and whether they are labels.

    Args:
        trace: The trace.
        found: Its operators.
        started: Device activities and their launches.
        counted: Mask of the spans that count.
    """
    frames, of_labels = _frames(trace)
    owners = _owners(trace, frames)
    span, size = owners.span, len(owners.tree)
    kept = counted[span] & (owners.owner != ROOT)
    self_ns = self_time(trace.spans["length"][span], owners.parent)
    host = np.bincount(owners.owner[kept], self_ns[kept], size)
    calls = np.bincount(owners.owner[kept & frames[span]], minlength=size)
    chosen = counted[started.work]
    started = Launches(started.work[chosen], started.call[chosen])
    by = launched_by(trace, started, found.span, found.parent)
    moment = _launch_moments(found, started, by)
    times, moment = (
        trace.spans["length"][started.work[moment != UNKNOWN]],
        moment[moment != UNKNOWN],
    )
    place = open_at(
        trace, span, owners.parent, trace.spans["thread"][moment], trace.spans["start"][moment]
    )
    owner = np.append(owners.owner, ROOT)[place]
    device = np.bincount(owner[owner != ROOT], times[owner != ROOT], size)
    names, paths = trace.tables["name"], list[tuple[str, ...]]()
    for name, above in owners.tree:
        paths.append((*(() if above == ROOT else paths[above]), names[name].removeprefix(MODULE)))
    columns = (column.astype(np.int64).tolist() for column in (calls, host, device))
    return [ModuleTime(*row) for row in zip(paths, *columns, strict=True)], of_labels


def _frames(trace: Trace) -> tuple[NDArray[np.bool_], bool]:
    """Return the frames of modules, or labels if there are none; and whether they are labels."""
    frames = trace.category(FRAMES) & trace.named(lambda name: name.startswith(MODULE))
    of_labels = not frames.any()
    return (_labels(trace) if of_labels else frames), of_labels


def _labels(trace: Trace) -> NDArray[np.bool_]:
    """Return the labels to use in place of modules: all but steps and communication."""

    def test(name: str) -> bool:
        return not (is_step(name) or communicates(name))

    return trace.category(LABELS) & trace.named(test)


def _owners(trace: Trace, frames: NDArray[np.bool_]) -> _Owners:
    """Return the owners of the time in modules, or labels, and in backward passes of operators."""
    graph, again = engine_calls(trace) & (trace.spans["sequence"] >= 0), trace.once(recomputed)
    span = np.flatnonzero(frames | graph | again)
    start, length, thread = (trace.spans[name][span] for name in ("start", "length", "thread"))
    parent = parents(start, length, thread)
    origin = forward_operators(trace, np.flatnonzero(graph))
    seen = origin != UNKNOWN
    at = np.full(len(origin), ROOT, np.int64)
    at[seen] = open_at(
        trace, span, parent, trace.spans["thread"][origin[seen]], trace.spans["start"][origin[seen]]
    )
    forward = iter(zip(seen.tolist(), at.tolist(), strict=True))
    tree = _Tree(trace.place_of_name(RECOMPUTATION))
    owner: list[int] = []
    phase: list[int] = []
    masks = (graph, again, frames)
    columns = (parent, trace.spans["name"][span], *(mask[span] for mask in masks))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for outer, name, is_graph, is_again, is_frame in rows:
        above, passing = (ROOT, FORWARD) if outer == ROOT else (owner[outer], phase[outer])
        if is_graph:
            is_seen, place = next(forward)
            if is_seen:
                above = ROOT if place == ROOT else tree.original(owner[place])
                passing = BACKWARD
        else:
            if is_again and not tree.is_again(above):
                above, passing = tree.recomputed_in(outer), FORWARD
            if is_frame:
                above = tree.child(above, name)
                tree.calls[above] += passing == FORWARD
        owner.append(above)
        phase.append(passing)
    return _Owners(
        span=span,
        parent=parent,
        owner=np.array(owner, np.int64),
        phase=np.array(phase, np.int64),
        tree=[(name, above) for above, name in tree.places],
        calls=tree.calls,
    )


class _Tree:
    """The tree of modules while it grows, with recomputed ones below a root of their own.

    Args:
        name: Index of that root's name in the trace's names.

    Attributes:
        places: The index of each node, by its parent and name.
        calls: How often each was called.
    """

    def __init__(self, name: int) -> None:
        self.places: dict[tuple[int, int], int] = {}
        self.calls: Counter[int] = Counter()
        self._name = name
        self._names: list[int] = []
        self._recomputed: list[bool] = []
        self._originals: dict[int, int] = {}
        self._nodes: set[int] = set()

    def child(self, above: int, name: int) -> int:
        """Return a node, which is added if it is new."""
        place = self.places.setdefault((above, name), len(self.places))
        if place == len(self._names):
            again = name == self._name if above == ROOT else self._recomputed[above]
            self._names.append(name)
            self._recomputed.append(again)
            if not again:
                self._originals[name] = ROOT if name in self._originals else place
        return place

    def recomputed_in(self, graph_node: int) -> int:
        """Return the root of recomputed work, and count the graph node in which it ran."""
        place = self.child(ROOT, self._name)
        self._nodes.add(graph_node)
        self.calls[place] = len(self._nodes)
        return place

    def is_again(self, place: int) -> bool:
        """Return whether a node is of recomputed work."""
        return place != ROOT and self._recomputed[place]

    def original(self, place: int) -> int:
        """Return a node, or for a recomputed one that of the same module; -1 if unknown."""
        return self._originals.get(self._names[place], ROOT) if self.is_again(place) else place


def _add_device(
    trace: Trace, found: Operators, started: Launches, taken: OperatorCosts, sums: _Sums
) -> int:
    """Add the device time; return the part of it without a known launch."""
    by = launched_by(trace, started, found.span, found.parent)
    moment = _launch_moments(found, started, by)
    times, known = trace.spans["length"][started.work], moment != UNKNOWN
    place = sums.at(*(trace.spans[name][moment[known]] for name in ("thread", "start")))
    sums.add("device", place, times[known])
    told = np.array([*(one.flops is not None for one in taken.known), False])
    counted = told[np.append(taken.code, UNKNOWN)][np.append(taken.inside, UNKNOWN)[by]]
    sums.add("uncounted", place, np.where(counted, 0, times)[known])
    return int(times[~known].sum())


def _launch_moments(found: Operators, started: Launches, by: Numbers) -> Numbers:
    """Return the span in whose start each device activity was launched; -1 if unknown."""
    operator = np.append(found.span, UNKNOWN)[by]
    moment: Numbers = np.where(started.call != UNKNOWN, started.call, operator)
    return moment


class _Sums:
    """Sums by module and phase; the last element is for what belongs to none."""

    def __init__(self, trace: Trace, owners: _Owners) -> None:
        self._trace, self._owners = trace, owners
        self._count = 2 * len(owners.tree) + 1
        key = 2 * owners.owner + owners.phase
        self._key = np.append(np.where(owners.owner == ROOT, self._count - 1, key), self._count - 1)
        names = ("host", "device", "allocated", "flops", "uncounted")
        self._amounts = {name: np.zeros(self._count, np.int64) for name in names}

    def at(self, thread: Numbers, when: Numbers) -> Numbers:
        """Return the innermost open span of modules and backward passes; -1 for none."""
        return open_at(self._trace, self._owners.span, self._owners.parent, thread, when)

    def add(self, name: str, place: Numbers, amount: Numbers) -> None:
        """Add amounts used inside spans; index -1 means outside of all."""
        np.add.at(self._amounts[name], self._key[place], amount)

    def rows(self) -> tuple[list[Module], Amounts]:
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
        names = self._trace.tables["name"]
        rows = [
            Module(
                name=names[name].removeprefix(MODULE),
                parent=above,
                calls=owners.calls[place],
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


@dataclass(frozen=True)
class Pass:
    """All backward passes through one kind of node that one operator created; times in ns.

    The node of forward work that runs again is called ``recomputation``.

    Attributes:
        operator: The forward operator; empty if the trace does not tell.
        node: The node, such as ``AddmmBackward0``.
        count: How often the engine called it; how many operators and modules run again.
        host: Time on the host, without nested nodes and recomputation.
        device: Device time that it launched, without these.
    """

    operator: str
    node: str
    count: int
    host: int
    device: int


def passes(trace: Trace, started: Launches) -> list[Pass]:
    """Return backward passes by the forward operator, the most device time first.

    Args:
        trace: The trace.
        started: Device activities and their launches.
    """
    spans, names = trace.spans, trace.tables["name"]
    called, again = engine_calls(trace), trace.once(recomputed)
    graph = _outermost(trace, called, again)
    parent = span_parents(trace, graph)
    device, _ = device_time(trace, started, graph, parent)
    numbered = called[graph] & (spans["sequence"][graph] >= 0)
    forward = np.full(len(graph), UNKNOWN, np.int64)
    forward[numbered] = forward_operators(trace, graph[numbered])
    made = np.append(spans["name"], UNKNOWN)[forward]
    node = np.where(again[graph], trace.place_of_name(RECOMPUTATION), spans["name"][graph])
    pairs = np.stack([made, node], axis=1)
    rows, of = np.unique(pairs, axis=0, return_inverse=True)
    times = (self_time(spans["length"][graph], parent), device)
    host, on_device = (_sums(of.ravel(), column, len(rows)) for column in times)
    counts = np.bincount(of.ravel(), minlength=len(rows)).tolist()
    found = [
        Pass("" if by == UNKNOWN else names[by], _node(names[name]), *amounts)
        for (by, name), *amounts in zip(rows.tolist(), counts, host, on_device, strict=True)
    ]
    return sorted(found, key=lambda one: (-one.device, -one.host, one.operator, one.node))


def _outermost(trace: Trace, called: Chosen, again: Chosen) -> Numbers:
    """Return the engine's calls, and what runs again in them without what is nested in that."""
    both = np.flatnonzero(called | again)
    nested = np.append(again[both], [False])[span_parents(trace, both)] & again[both]
    return both[~nested]


def _node(name: str) -> str:
    return name.removeprefix(GRAPH).removeprefix(": ")


def _sums(of: Numbers, times: Numbers, count: int) -> list[int]:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, of, times)
    found: list[int] = sums.tolist()
    return found


def forward_operators(trace: Trace, graph: Numbers) -> Numbers:
    """Return the operator that created the node of each call of autograd's engine; -1 if unknown.

    Earlier operators may have the same sequence number, so it is the last of them. Each thread has
    its own numbers: a number that several threads use identifies no operator.
    """
    spans, number = trace.spans, trace.spans["sequence"]
    chosen = np.flatnonzero(trace.category(OPERATORS) & (number >= 0))
    chosen = chosen[~np.isin(chosen, graph) & np.isin(number[chosen], number[graph])]
    inside = innermost(trace, graph, span_parents(trace, graph), chosen)
    own = np.append(number[graph], UNKNOWN)[inside] == number[chosen]
    chosen = chosen[~own]
    both = np.concatenate([graph, chosen])
    is_graph = np.arange(len(both)) < len(graph)
    order = np.lexsort((~is_graph, spans["start"][both], number[both]))
    before = np.maximum.accumulate(np.where(is_graph[order], ROOT, np.arange(len(both))))
    last = np.full(len(both), UNKNOWN, np.int64)
    last[order] = np.append(both[order], UNKNOWN)[before]
    result = last[: len(graph)]
    pairs = np.unique(np.stack([number[chosen], spans["thread"][chosen]]), axis=1)
    several, times = np.unique(pairs[0], return_counts=True)
    wrong = np.append(number, UNKNOWN)[result] != number[graph]
    return np.where(wrong | np.isin(number[graph], several[times > 1]), UNKNOWN, result)
