"""The forward operator of each call of autograd's engine in a backward pass.

The operator that created a graph node and the engine's call that executes the node have the same
sequence number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN, open_at
from dynprof.analysis.measures.timeline.nesting import ROOT, own_time, parents
from dynprof.analysis.measures.timeline.operators import device_time
from dynprof.analysis.reading.events import OPERATORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

GRAPH = "autograd::engine::evaluate_function"
"""Prefix of the names of the engine's calls; the name of the node follows."""


@dataclass(frozen=True)
class Pass:
    """All backward passes through one kind of node that one operator created; times in ns.

    Attributes:
        operator: The forward operator; empty if the trace does not tell.
        node: The node, such as ``AddmmBackward0``.
        count: How often the engine called it.
        host: Time on the host, without nested nodes.
        device: Device time that it launched, without nested nodes.
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
    graph = np.flatnonzero(
        trace.category(OPERATORS) & trace.named(lambda name: name.startswith(GRAPH))
    )
    parent = parents(*(spans[name][graph] for name in ("start", "length", "thread")))
    device, _ = device_time(trace, started, graph, parent)
    numbered = spans["sequence"][graph] >= 0
    forward = np.full(len(graph), UNKNOWN, np.int64)
    forward[numbered] = forward_operators(trace, graph[numbered])
    made = np.append(spans["name"], UNKNOWN)[forward]
    pairs = np.stack([made, spans["name"][graph]], axis=1)
    rows, of = np.unique(pairs, axis=0, return_inverse=True)
    times = (own_time(spans["length"][graph], parent), device)
    host, on_device = (_sums(of.ravel(), column, len(rows)) for column in times)
    counts = np.bincount(of.ravel(), minlength=len(rows)).tolist()
    found = [
        Pass("" if by == UNKNOWN else names[by], _node(names[name]), *amounts)
        for (by, name), *amounts in zip(rows.tolist(), counts, host, on_device, strict=True)
    ]
    return sorted(found, key=lambda one: (-one.device, -one.host, one.operator, one.node))


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
    columns = (spans[name][graph] for name in ("start", "length", "thread"))
    inside = open_at(
        trace, graph, parents(*columns), spans["thread"][chosen], spans["start"][chosen]
    )
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
