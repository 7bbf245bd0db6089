"""Phases of the host in a step: data loading, forward, backward, optimizer, checkpoint.

They come from the ranges that torch and the script set by any means. What autograd's engine runs is
backward in any case, and recomputation is a phase of its own. Without ranges, forward comes from
modules and operators.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import innermost
from dynprof.analysis.measures.timeline.operators import step_marks
from dynprof.analysis.measures.timeline.overhead import overhead
from dynprof.analysis.reading.events import FRAMES, LABELS, MARKS, OPERATORS, RANGES
from dynprof.analysis.reading.spans import ROOT, distinct, layered, parents

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]
    Chosen = NDArray[np.bool_]

Phases = dict[str, int]
"""By name, how long each phase lasted in a step, in ns."""

LOADING, FORWARD, BACKWARD = "data loading", "forward", "backward"
OPTIMIZER, CHECKPOINT, REST = "optimizer", "checkpoint", "rest"
RECOMPUTATION = "recomputation"
"""Forward work that runs again inside the backward pass, for activation checkpointing."""
_WRAPPERS = ("distributeddataparallel.forward", "fullyshardeddataparallel.forward")
_LABELS: dict[str, Callable[[str], bool]] = {
    LOADING: lambda name: (
        name in ("dataloader", "load") or ("dataloader" in name and "__next__" in name)
    ),
    CHECKPOINT: lambda name: name in ("checkpoint", "save_checkpoint", "checkpointing"),
    OPTIMIZER: lambda name: name == "optimizer" or name.startswith("optimizer."),
    BACKWARD: lambda name: name == "backward",
    FORWARD: lambda name: name in ("forward", *_WRAPPERS),
}
"""Tests of labels, in lower case and without ``#`` around them."""
_LAYER = re.compile("aten::(linear|conv|_convolution|addmm|matmul|bmm|mm|embedding|scaled_dot)")
"""Matches names of operators of which layers of networks consist."""
_OF_OPTIMIZERS = re.compile("aten::(_foreach_|_fused_(adam|sgd|adagrad)|zero_$|detach_$)")
"""Matches names of operators of which optimizers consist, with ``zero_grad``."""
PRECEDENCE = (LOADING, CHECKPOINT, OPTIMIZER, RECOMPUTATION, BACKWARD, FORWARD)
"""The phases without the rest; of those at the same time the first counts."""
NAMES = (LOADING, FORWARD, BACKWARD, RECOMPUTATION, OPTIMIZER, CHECKPOINT, REST)
"""The phases in the order of a step."""
_RECORDING = "recording"
GRAPH = "autograd::engine::evaluate_function"
"""Prefix of the names of the engine's calls; the name of the node follows."""
MODULE = "nn.Module: "
"""Kineto's prefix of the names of modules' frames."""
_NODE = re.compile(r"(?!aten::).*(Backward\d*|::AccumulateGrad)")
"""Names of graph nodes in torch 1.8, which records no calls of the engine."""


def phase_times(trace: Trace, marked: list[MarkedStep]) -> list[Phases]:
    """Return how long each phase of each marked step took; time in no phase is the rest.

    The profiler's own time counts as rest.
    """
    covers = {_RECORDING: trace.when(overhead(trace))}
    covers |= {phase: where_phase(trace, phase) for phase in PRECEDENCE}
    begin, length = (np.array([step[at] for step in marked], np.int64) for at in (1, 2))
    found = layered(covers, begin, begin + length)
    del found[_RECORDING]
    found[REST] = length - sum(found.values())
    rows = zip(*(found[name].tolist() for name in NAMES), strict=True)
    return [dict(zip(NAMES, row, strict=True)) for row in rows]


def mean_phases(steps: list[Phases]) -> dict[str, float]:
    """Return how long each phase takes in the mean step, in ns."""
    return {name: sum(step[name] for step in steps) / max(1, len(steps)) for name in NAMES}


def where_phase(trace: Trace, phase: str) -> Cover:
    """Return when a phase is active: during its labels, else by another sign of it."""
    return trace.when(phase_spans(trace, phase))


def phase_spans(trace: Trace, phase: str) -> NDArray[np.bool_]:
    """Return the spans that show a phase."""
    if phase == RECOMPUTATION:
        return trace.once(recomputed)
    test = _LABELS[phase]
    labelled = trace.category(LABELS, OPERATORS, MARKS, RANGES)
    labelled &= trace.named(lambda name: test(_plain(name))) & (trace.spans["length"] > 0)
    if phase == BACKWARD:
        labelled |= backward_operators(trace)
    if not labelled.any() and phase == FORWARD:
        labelled = _forward(trace)
    return labelled


def _plain(name: str) -> str:
    return name.strip("# ").lower()


def forward_is_guessed(trace: Trace) -> bool:
    """Return whether neither labels nor modules show the forward pass, but operators suggest it."""
    test = _LABELS[FORWARD]
    modules = trace.category(FRAMES) & trace.named(lambda name: name.startswith(MODULE))
    labelled = trace.category(LABELS, OPERATORS, MARKS, RANGES)
    return not (modules | labelled & trace.named(lambda name: test(_plain(name)))).any()


def _forward(trace: Trace) -> NDArray[np.bool_]:
    """Return the modules, or else the operators whose graph nodes a backward pass visits.

    Without a backward pass, or its numbers, the operators on the threads of the steps are forward
    if they run a layer of a network, but not those of optimizers.
    """
    modules = trace.category(FRAMES) & trace.named(lambda name: name.startswith(MODULE))
    if modules.any():
        return modules
    sequence, forward = trace.spans["sequence"], trace.category(OPERATORS)
    forward &= ~backward_operators(trace) & (sequence >= 0)
    visited = forward & np.isin(sequence, sequence[engine_calls(trace)])
    if visited.any():
        return visited
    steps = distinct(trace.spans["thread"][step_marks(trace)])
    found = trace.category(OPERATORS) & np.isin(trace.spans["thread"], steps)
    runs_layer = (found & trace.named(lambda name: bool(_LAYER.match(name)))).any()
    return found & ~trace.named(lambda name: bool(_OF_OPTIMIZERS.match(name))) & runs_layer


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

    Activation checkpointing frees activations and computes them again in the backward pass.
    Gradient mode is on for that work, so its operators have sequence numbers, unlike those of the
    gradient's own formula. With stacks, the modules that are called again are frames inside a
    graph node.

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
