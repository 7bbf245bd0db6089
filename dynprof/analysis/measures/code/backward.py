"""The forward operator of each call of autograd's engine in a backward pass.

The operator that created a graph node and the engine's call that executes the node have the same
sequence number. Forward work that runs again inside a node is a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.autograd import (
    GRAPH,
    engine_calls,
    recomputed,
    span_parents,
)
from dynprof.analysis.measures.timeline.launches import UNKNOWN, innermost
from dynprof.analysis.measures.timeline.operators import device_time
from dynprof.analysis.measures.timeline.phases import RECOMPUTATION
from dynprof.analysis.reading.events import OPERATORS
from dynprof.analysis.reading.spans import ROOT, own_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]
    Chosen = NDArray[np.bool_]


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
    times = (own_time(spans["length"][graph], parent), device)
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
