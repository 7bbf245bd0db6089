"""What costs a step time that it need not cost, by what it costs, and what to try about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.breakdown import COMMUNICATION, IDLE, Breakdown, ms
from dynprof.analysis.intervals import clipped, cover, covered
from dynprof.analysis.memory import device_label
from dynprof.analysis.operators import OPERATORS
from dynprof.analysis.phases import CHECKPOINT, LOADING, OPTIMIZER
from dynprof.analysis.steps import LAUNCHES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.capture import Capture

LEAST = 0.03
"""A finding costs at least this share of a step."""
_SMALL_NS = 10_000
"""Launching a kernel takes the host about this long, so that shorter ones leave a device idle."""
_MANY_KERNELS, _MANY_OPERATORS = 100, 500
_PRODUCTS = ("mm", "gemm", "conv", "attention", "cutlass", "linear")
_LARGE = 0.25
"""From this share of a step on, one operator or the optimizer is worth naming."""
_NEAR = 0.9
"""Memory is near its limit from this share on."""


@dataclass(frozen=True)
class Finding:
    """Something to look at.

    Attributes:
        title: What it is, in a few words.
        share: What it takes, from 0 to 1.
        detail: The figures, in a sentence.
        advice: What to try.
        of: What it takes that share of.
        weight: How bad it is; the share of a step that is as bad.
    """

    title: str
    share: float
    detail: str
    advice: str
    of: str = "a step"
    weight: float = -1

    @property
    def badness(self) -> float:
        """How bad it is, for sorting."""
        return self.share if self.weight < 0 else self.weight

    def __str__(self) -> str:
        return f"{self.title}: {self.detail} {self.advice}"


def findings(capture: Capture, steps: Breakdown) -> list[Finding]:
    """Return what was found, the worst first."""
    found = [finding for rule in _RULES if (finding := rule(capture, steps))]
    return sorted((f for f in found if f.badness >= LEAST), key=lambda f: -f.badness)


def _data_loading(_: Capture, steps: Breakdown) -> Finding:
    time = steps.phases[LOADING]
    return Finding(
        "The step waits for data",
        steps.share(time),
        f"The data loader keeps each step waiting for {ms(time)}.",
        "Try more workers (num_workers), prefetch_factor and persistent_workers=True, and do less "
        "for each sample; pin_memory=True with non_blocking copies hides the copy.",
    )


def _exposed_communication(_: Capture, steps: Breakdown) -> Finding:
    time, whole = steps.parts[COMMUNICATION], steps.mean_of("communication")
    alone = "all of it" if time > 0.995 * whole else ms(time)
    return Finding(
        "Communication is exposed",
        steps.share(time),
        f"Collectives run for {ms(whole)} of a step, {alone} while nothing computes.",
        "Look first whether one rank comes late (dynprof report on the folder of all ranks). Then "
        "try gradient accumulation, larger buckets (bucket_cap_mb), bf16 gradients, or sharding "
        "that overlaps with the backward pass.",
    )


def _idle_device(capture: Capture, steps: Breakdown) -> Finding | None:
    if steps.on_host:
        return None
    kernels = capture.trace.spans["length"][capture.trace.category("kernel")]
    count = len(kernels) / max(1, len(steps.steps))
    middle = float(np.median(kernels))
    time = steps.parts[IDLE]
    if count >= _MANY_KERNELS and middle < _SMALL_NS:
        return Finding(
            "Many small kernels",
            steps.share(time),
            f"{count:,.0f} kernels a step, half of them shorter than {middle / 1e3:.1f} us, leave "
            f"the device idle for {ms(time)}: the host cannot launch them fast enough.",
            "Try torch.compile (mode='reduce-overhead' records CUDA graphs), fused=True in the "
            "optimizer, or a larger batch.",
        )
    return Finding(
        "The device waits for the host",
        steps.share(time),
        f"It is idle for {ms(time)} of a step, between {count:,.0f} kernels.",
        "See in the flame graph what the host does meanwhile (record with_stack), or open the "
        "gaps with dynprof view.",
    )


def _synchronisations(capture: Capture, steps: Breakdown) -> Finding | None:
    trace = capture.trace
    chosen = trace.category(*LAUNCHES) & trace.named(lambda name: "Synchronize" in name)
    time, count = _in_steps(capture, chosen)
    time = min(time, steps.parts[IDLE])  # a device that is busy meanwhile loses nothing
    asked = Counter(_callers(capture, chosen))
    by = f", most by {asked.most_common(1)[0][0]}" if asked else ""
    return Finding(
        "The host waits for the device",
        0.0 if steps.on_host else steps.share(time),
        f"{count:,.1f} synchronisations a step{by}; the device then idles for up to {ms(time)}.",
        "Look for .item(), .cpu(), print(loss) and conditions on tensors in the loop: keep values "
        "on the device and read them every so many steps, copy with non_blocking=True.",
    )


def _callers(capture: Capture, chosen: NDArray[np.bool_]) -> list[str]:
    """Return the names of the operators that made these calls, as far as they are known."""
    trace = capture.trace
    wanted = trace.spans["external_id"][chosen]
    makers = np.flatnonzero(trace.category(OPERATORS) & (trace.spans["external_id"] > 0))
    names = dict(zip(trace.spans["external_id"][makers].tolist(), makers.tolist(), strict=True))
    return [trace.name(names[one]) for one in wanted.tolist() if one in names]


def _garbage(capture: Capture, steps: Breakdown) -> Finding:
    time, count = _in_steps(capture, capture.trace.category("gc"))
    return Finding(
        "Garbage collection",
        steps.share(time),
        f"Python collects garbage {count:,.1f} times a step, for {ms(time)}.",
        "Try gc.freeze() after set-up, a higher gc.set_threshold(), or gc.disable() with a "
        "gc.collect() every so many steps, on all ranks in the same one.",
    )


def _compiling(capture: Capture, steps: Breakdown) -> Finding:
    chosen = capture.trace.named(lambda name: "(dynamo_timed)" in name)
    time, _ = _in_steps(capture, chosen)
    return Finding(
        "Recompilation",
        steps.share(time),
        f"torch.compile compiles inside the recorded steps, for {ms(time)} a step.",
        "TORCH_LOGS=recompiles says why: mostly shapes that change (mark_dynamic, padding) or "
        "Python values that are compiled in.",
    )


def _allocator(capture: Capture, steps: Breakdown) -> Finding:
    trace = capture.trace
    chosen = trace.category(*LAUNCHES) & trace.named(
        lambda name: name.endswith(("Malloc", "Free", "MallocAsync", "HostAlloc"))
    )
    time, count = _in_steps(capture, chosen)
    return Finding(
        "Memory is taken from the driver in the loop",
        steps.share(time),
        f"{count:,.1f} calls a step that allocate or free device memory take {ms(time)}.",
        "The caching allocator should need none after some steps: look for shapes that change and "
        "for empty_cache(); try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    )


def _pageable_copies(capture: Capture, steps: Breakdown) -> Finding:
    trace = capture.trace
    chosen = trace.category("gpu_memcpy") & trace.named(lambda name: "Pageable" in name)
    time, count = _in_steps(capture, chosen)
    return Finding(
        "Copies from memory that is not pinned",
        steps.share(time),
        f"{count:,.1f} copies a step between the device and pageable memory take {ms(time)}.",
        "Try pin_memory=True in the data loader, and .to(device, non_blocking=True).",
    )


def _between_operators(capture: Capture, steps: Breakdown) -> Finding | None:
    if not steps.on_host or "fee" in map(str.lower, capture.trace.tables["category"]):
        return None
    time = steps.parts[IDLE] - steps.phases[LOADING] - steps.phases[CHECKPOINT]
    return Finding(
        "Python between the operators",
        max(0.0, steps.share(time)),
        f"No operator and no collective runs for {ms(time)} of a step.",
        "Record with_stack to see which functions; loops over tensors, logging and .item() are "
        "the usual ones.",
    )


def _small_operators(capture: Capture, steps: Breakdown) -> Finding | None:
    trace, found = capture.trace, capture.operators
    own = found.own[trace.category(OPERATORS)[found.span]]
    count, small = len(own) / max(1, len(steps.steps)), own[own < _SMALL_NS]
    if not steps.on_host or count < _MANY_OPERATORS or not len(small):
        return None
    time = float(small.sum()) / max(1, len(steps.steps))
    return Finding(
        "Many small operators",
        steps.share(time),
        f"Of {count:,.0f} operators a step {len(small) / len(own):.0%} take less than "
        f"{_SMALL_NS // 1000} us of their own, {ms(time)} together.",
        "Try torch.compile, which fuses them, a larger batch, or foreach=True in the optimizer.",
    )


def _costliest(capture: Capture, steps: Breakdown) -> Finding | None:
    """Name what takes most of the time: nothing may be wrong with it, but it is where to begin."""
    kind = next((kind for kind in capture.kinds if kind.core != "COMMUNICATION"), None)
    count = max(1, len(steps.steps))
    if kind is None or steps.share(kind.total / count) < _LARGE:
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


def _optimizer(_: Capture, steps: Breakdown) -> Finding | None:
    time = steps.phases[OPTIMIZER]
    if steps.share(time) < _LARGE:
        return None
    return Finding(
        "The optimizer takes long",
        steps.share(time),
        f"It takes {ms(time)} of each step.",
        "Try fused=True or foreach=True, and a larger batch or gradient accumulation.",
    )


def _checkpoint(_: Capture, steps: Breakdown) -> Finding:
    time = steps.phases[CHECKPOINT]
    return Finding(
        "Checkpoints hold the step up",
        steps.share(time),
        f"Saving takes {ms(time)} of a step in the mean.",
        "Try torch.distributed.checkpoint.async_save, or save less often.",
    )


def _memory(capture: Capture, _: Breakdown) -> Finding | None:
    """Compare the highest reserved memory of each device with what it has."""
    memory, worst = capture.trace.memory, None
    for number, limit in capture.device_memory.items():
        mine = memory["reserved"][memory["device_id"] == number]
        peak = int(mine.max()) if len(mine) else 0
        if limit and peak / limit >= _NEAR and (worst is None or peak / limit > worst[1]):
            worst = number, peak / limit, limit
    if worst is None:
        return None
    number, share, limit = worst
    return Finding(
        "Memory is near its limit",
        share,
        f"{device_label(1, number)} had reserved {share:.0%} of its {limit / 1e9:,.1f} GB.",
        "Past it the allocator frees and retries, which stops the device: try a smaller batch, "
        "activation checkpointing, or set_to_none=True in zero_grad.",
        of="memory",
        weight=LEAST + share - _NEAR,
    )


def _in_steps(capture: Capture, chosen: NDArray[np.bool_]) -> tuple[float, float]:
    """Return for how long spans cover a step, in the mean, and how many begin in it."""
    spans = capture.trace.spans
    start = spans["start"][chosen]
    where = cover(start, start + spans["length"][chosen])
    time, count = 0, 0
    for _, begin, length in capture.marked:
        time += covered(clipped(where, begin, begin + length))
        count += int(((start >= begin) & (start < begin + length)).sum())
    steps = max(1, len(capture.marked))
    return time / steps, count / steps


_RULES = (
    _data_loading, _exposed_communication, _idle_device, _synchronisations, _garbage, _compiling,
    _allocator, _pageable_copies, _between_operators, _small_operators, _costliest, _optimizer,
    _checkpoint, _memory,
)  # fmt: skip
