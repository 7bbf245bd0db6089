"""Work of autograd's engine: backward passes, and forward work that runs again inside them.

Activation checkpointing frees activations and computes them again in the backward pass. Gradient
mode is on for that work, so its operators have sequence numbers, unlike those of the gradient's own
formula. They ran before, with the same inputs, unlike those of a formula that differentiates as it
goes. With stacks, the modules that are called again are frames inside a graph node.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import innermost
from dynprof.analysis.reading.events import FRAMES, LABELS, OPERATORS
from dynprof.analysis.reading.spans import ROOT, parents

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]
    Chosen = NDArray[np.bool_]

GRAPH = "autograd::engine::evaluate_function"
"""Prefix of the names of the engine's calls; the name of the node follows."""
MODULE = "nn.Module: "
"""Kineto's prefix of the names of modules' frames."""
_NODE = re.compile(r"(?!aten::).*(Backward\d*|::AccumulateGrad)")
"""Names of graph nodes in torch 1.8, which records no calls of the engine."""


def engine_calls(trace: Trace) -> Chosen:
    """Return the engine's calls of graph nodes."""
    return trace.category(OPERATORS) & trace.named(lambda name: name.startswith(GRAPH))


def backward_operators(trace: Trace) -> Chosen:
    """Return the engine's calls, and the graph nodes that run in them."""
    calls = (name for name in trace.tables["name"] if name.startswith(GRAPH))
    nodes = {name.removeprefix(f"{GRAPH}: ") for name in calls}
    is_node = trace.named(lambda name: name in nodes or bool(_NODE.fullmatch(name)))
    return trace.category(OPERATORS) & is_node | engine_calls(trace)


def recomputed(trace: Trace) -> Chosen:
    """Return the operators, modules and labels of forward work that runs again in a backward pass.

    If all operators in a call of the engine have sequence numbers, none of them is such work: they
    compute a gradient with ``create_graph=True``. Nor is any if one of them, with its inputs, is
    nowhere outside of the engine: a backward formula computes something new.
    """
    calls = engine_calls(trace)
    operators = trace.category(OPERATORS) & ~backward_operators(trace)
    numbered = operators & (trace.spans["sequence"] >= 0)
    modules = trace.category(FRAMES) & trace.named(lambda name: name.startswith(MODULE))
    found, call = _inside(trace, calls, numbered | modules)
    again = np.zeros(len(calls), bool)
    if not len(found):
        return again
    again[found] = True
    _, without_number = _inside(trace, calls | numbered & again, operators & ~numbered)
    span = np.flatnonzero(calls)
    around = np.append(span, ROOT)[span_parents(trace, span)]
    without_graph = np.zeros(len(calls), bool)  # the engine's calls with gradient mode off
    without_graph[without_number] = without_graph[around[around != ROOT]] = True
    without_graph &= ~_with_new_work(trace, calls, numbered & again, operators)
    again[found] = modules[found] | without_graph[call]
    return again | _labels_around(trace, calls, again)


def _with_new_work(trace: Trace, calls: Chosen, again: Chosen, operators: Chosen) -> Chosen:
    """Return the engine's calls with an operator that ran nowhere else with the same inputs.

    Of nested operators the outermost counts: gradient mode may change what is inside.

    Args:
        trace: The trace.
        calls: The engine's calls.
        again: Operators in them that may be forward work.
        operators: All operators.
    """
    names, dims = trace.spans["name"], trace.spans["dims"]
    key = names * (int(dims.max(initial=0)) + 2) + dims
    span = np.flatnonzero(calls | again)
    parent = span_parents(trace, span)
    outermost = again[span] & np.append(calls[span], False)[parent] & ~_copies_state(trace)[span]
    same = operators & np.isin(names, names[span[outermost]])
    same[_inside(trace, calls, same)[0]] = False
    new = outermost & ~np.isin(key[span], key[same])
    found = np.zeros(len(calls), bool)
    found[span[parent[new]]] = True
    return found


def _copies_state(trace: Trace) -> Chosen:
    """Return the copies of a random generator's state, which a checkpoint sets again."""
    of_bytes = [not types or b"unsigned char" in types for _, types, *_ in trace.tables["dims"]]
    found: Chosen = np.array(of_bytes, bool)[trace.spans["dims"]]
    return found & trace.named("aten::clone".__eq__)


def _labels_around(trace: Trace, calls: Chosen, again: Chosen) -> Chosen:
    """Return the labels in calls of the engine that have recomputed work in them."""
    labels, around = np.zeros((2, len(calls)), bool)
    labels[_inside(trace, calls, trace.category(LABELS))[0]] = True
    span = np.flatnonzero(calls | labels)
    parent = span_parents(trace, span)
    place = innermost(trace, span, parent, np.flatnonzero(again))
    while len(place := place[place != ROOT]):
        place = place[labels[span[place]]]
        around[span[place]] = True
        place = parent[place]
    return around


def _inside(trace: Trace, outer: Chosen, inner: Chosen) -> tuple[Numbers, Numbers]:
    """Return the inner spans that begin inside an outer one, and the innermost outer of each."""
    around, begun = np.flatnonzero(outer), np.flatnonzero(inner)
    place = innermost(trace, around, span_parents(trace, around), begun)
    known = place != ROOT
    return begun[known], around[place[known]]


def span_parents(trace: Trace, span: Numbers) -> Numbers:
    """Return the index of the parent of each span among them; -1 for none."""
    return parents(*(trace.spans[name][span] for name in ("start", "length", "thread")))
