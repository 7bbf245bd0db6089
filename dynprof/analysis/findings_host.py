"""What takes a step's time on the host, and what takes most of it anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.breakdown import IDLE, Breakdown, ms
from dynprof.analysis.finding import LARGE, SMALL_NS, Finding, in_steps
from dynprof.analysis.operators import OPERATORS
from dynprof.analysis.phases import CHECKPOINT, LOADING, OPTIMIZER

if TYPE_CHECKING:
    from dynprof.analysis.capture import Capture

_MANY_OPERATORS = 500
_COMPILING = "(dynamo_timed)"
"""In the names of what torch.compile does."""
_PRODUCTS = ("mm", "gemm", "conv", "attention", "cutlass", "linear")


def data_loading(_: Capture, steps: Breakdown) -> Finding:
    """Look for steps that wait for data."""
    time = steps.phases[LOADING]
    return Finding(
        "The step waits for data",
        steps.share(time),
        f"The data loader keeps each step waiting for {ms(time)}.",
        "Try more workers (num_workers), prefetch_factor and persistent_workers=True, and do less "
        "for each sample; pin_memory=True with non_blocking copies hides the copy.",
    )


def garbage(capture: Capture, steps: Breakdown) -> Finding:
    """Look for Python's garbage collections, as ``gc_detect_threshold`` records them."""
    time, count = _collections(capture)
    return Finding(
        "Garbage collection",
        steps.share(time),
        f"Python collects garbage {count:,.1f} times a step, for {ms(time)}.",
        "Try gc.freeze() after set-up, a higher gc.set_threshold(), or gc.disable() with a "
        "gc.collect() every so many steps, on all ranks in the same one.",
    )


def _collections(capture: Capture) -> tuple[float, float]:
    return in_steps(capture, capture.trace.category("gc"))


def compiling(capture: Capture, steps: Breakdown) -> Finding:
    """Look for compilations by torch.compile inside the recorded steps."""
    chosen = capture.trace.named(lambda name: _COMPILING in name)
    time, _ = in_steps(capture, chosen)
    return Finding(
        "Recompilation",
        steps.share(time),
        f"torch.compile compiles inside the recorded steps, for {ms(time)} a step.",
        "TORCH_LOGS=recompiles says why: mostly shapes that change (mark_dynamic, padding) or "
        "Python values that are compiled in.",
    )


def between_operators(capture: Capture, steps: Breakdown) -> Finding | None:
    """Look for time in which Python runs and no operator does."""
    if not steps.on_host or not capture.trace.category(OPERATORS).any():
        return None
    named = steps.phases[LOADING] + steps.phases[CHECKPOINT] + _collections(capture)[0]
    time = steps.parts[IDLE] - named
    return Finding(
        "Python between the operators",
        max(0.0, steps.share(time)),
        f"No operator and no collective runs for {ms(time)} of a step.",
        "Record with_stack to see which functions; loops over tensors, logging and .item() are "
        "the usual ones.",
    )


def small_operators(capture: Capture, steps: Breakdown) -> Finding | None:
    """Look for operators that take hardly longer than their dispatch."""
    trace, found = capture.trace, capture.operators
    own = found.own[trace.category(OPERATORS)[found.span]]
    count, small = len(own) / max(1, len(steps.steps)), own[own < SMALL_NS]
    if not steps.on_host or count < _MANY_OPERATORS or not len(small):
        return None
    time = float(small.sum()) / max(1, len(steps.steps))
    return Finding(
        "Many small operators",
        steps.share(time),
        f"Of {count:,.0f} operators a step {len(small) / len(own):.0%} take less than "
        f"{SMALL_NS // 1000} us of their own, {ms(time)} together.",
        "Try torch.compile, which fuses them, a larger batch, or foreach=True in the optimizer.",
    )


def costliest(capture: Capture, steps: Breakdown) -> Finding | None:
    """Name what takes most of the time: nothing may be wrong with it, but it is where to begin."""
    work = (kind for kind in capture.kinds if kind.core != "COMMUNICATION")
    kind = next((kind for kind in work if _COMPILING not in kind.name), None)
    count = max(1, len(steps.steps))
    if kind is None or steps.share(kind.total / count) < LARGE:
        return None
    return Finding(
        f"{kind.name} takes the most",
        steps.share(kind.total / count),
        f"{kind.count / count:,.3g} of them in a step take {ms(kind.total / count)}.",
        _advice_on(kind.name),
    )


def _advice_on(name: str) -> str:
    if any(part in name.lower() for part in _PRODUCTS):
        return (
            "Record with record_shapes and look for sizes that are small, odd or not multiples of "
            "8; try torch.autocast with bfloat16."
        )
    return "Search for it in the flame graph: is each call needed, and could one do for many?"


def optimizer(_: Capture, steps: Breakdown) -> Finding | None:
    """Look for an optimizer that takes a large part of the step."""
    time = steps.phases[OPTIMIZER]
    if steps.share(time) < LARGE:
        return None
    return Finding(
        "The optimizer takes long",
        steps.share(time),
        f"It takes {ms(time)} of each step.",
        "Try fused=True or foreach=True, and a larger batch or gradient accumulation.",
    )


def checkpoint(_: Capture, steps: Breakdown) -> Finding:
    """Look for checkpoints that are written inside the step."""
    time = steps.phases[CHECKPOINT]
    return Finding(
        "Checkpoints hold the step up",
        steps.share(time),
        f"Saving takes {ms(time)} of a step in the mean.",
        "Try torch.distributed.checkpoint.async_save, or save less often.",
    )
