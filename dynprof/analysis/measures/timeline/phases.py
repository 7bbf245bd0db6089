"""Phases of the host in a step: data loading, forward, backward, optimizer, checkpoint.

They come from the ranges that torch and the script set by any means. What autograd's engine runs is
backward in any case, and recomputation is a phase of its own. Without ranges, forward comes from
modules and operators.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.autograd import (
    MODULE,
    backward_operators,
    engine_calls,
    recomputed,
)
from dynprof.analysis.measures.timeline.operators import step_marks
from dynprof.analysis.measures.timeline.overhead import overhead
from dynprof.analysis.reading.events import FRAMES, LABELS, MARKS, OPERATORS, RANGES
from dynprof.analysis.reading.spans import distinct, layered

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

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


def phase_times(trace: Trace, marked: list[MarkedStep]) -> list[Phases]:
    """Return how long each phase of each marked step took; time in no phase is the rest.

    The profiler's own time counts as rest.
    """
    covers = {_RECORDING: trace.when(overhead(trace))}
    covers |= {phase: where_phase(trace, phase) for phase in PRECEDENCE}
    return [_in_step(covers, step) for step in marked]


def mean_phases(steps: list[Phases]) -> dict[str, float]:
    """Return how long each phase takes in the mean step, in ns."""
    return {name: sum(step[name] for step in steps) / max(1, len(steps)) for name in NAMES}


def _in_step(covers: dict[str, Cover], step: MarkedStep) -> Phases:
    _, begin, length = step
    found = layered(covers, begin, begin + length)
    del found[_RECORDING]
    found[REST] = length - sum(found.values())
    return {name: found[name] for name in NAMES}


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
