"""What keeps a device from computing: idling, waiting, moving data; and its memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.findings.finding import LEAST, SMALL_NS, Finding, how_many
from dynprof.analysis.measures.breakdown import COMMUNICATION, COMPUTING, IDLE, Breakdown, ms
from dynprof.analysis.measures.launches import UNKNOWN, innermost
from dynprof.analysis.measures.memory_timeline import device_label
from dynprof.analysis.reading.categories import COPIES, FRAMES, KERNELS, LAUNCHES
from dynprof.analysis.reading.intervals import united
from dynprof.plural import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.reading.intervals import Cover

_MANY_KERNELS = 100
NEAR = 0.9
"""Memory is near its limit from this share on."""


def exposed_communication(_: MeasuredTrace, steps: Breakdown) -> Finding:
    """Look for collectives that run while nothing computes."""
    time, whole = steps.parts[COMMUNICATION], steps.time_in(steps.covers[COMMUNICATION])
    alone = "all of it" if time > 0.995 * whole else ms(time)
    return Finding(
        "Communication is exposed",
        steps.share(time),
        f"Collectives run for {ms(whole)} of {steps.a_step}, {alone} while nothing computes.",
        "See first whether one rank keeps the others waiting: that rank is the cause. Else try "
        "gradient accumulation, larger buckets (bucket_cap_mb), bf16 gradients, or sharding "
        "that overlaps with the backward pass.",
    )


def idle_device(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Look for a device that is idle for no other reason, and whether its kernels are small."""
    if steps.on_host:
        return None
    trace = measured.trace
    kernels = trace.category(KERNELS) & (trace.spans["device"] == steps.device)
    count = int(kernels.sum()) / max(1, steps.count)
    middle = float(np.median(trace.spans["length"][kernels]))
    named = united(*steps.causes.values(), _gaps_after_waits(measured, steps))
    time = steps.parts[IDLE] - steps.idle_in(named)
    if count >= _MANY_KERNELS and middle < SMALL_NS:
        return Finding(
            "Many small kernels",
            steps.share(time),
            f"{counted(count, 'kernel')} in {steps.a_step}, half of them shorter than "
            f"{middle / 1e3:.1f} us, leave the device idle for {ms(time)}: the host cannot launch "
            "them fast enough.",
            "Try torch.compile (mode='reduce-overhead' records CUDA graphs), fused=True in the "
            "optimizer, or a larger batch.",
        )
    stacks = "" if trace.category(FRAMES).any() else " (record with_stack)"
    return Finding(
        "The device waits for the host",
        steps.share(time),
        f"It is idle for {ms(time)} of {steps.a_step}, between {counted(count, 'kernel')}.",
        f"See in the flame graph what the host does meanwhile{stacks}, or open the gaps with "
        "dynprof view.",
    )


def synchronisations(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Look for calls in which the host waits for the device, which then has nothing to do."""
    if steps.on_host:
        return None
    chosen = _waits(measured)
    time = steps.time_in(_gaps_after_waits(measured, steps))
    waits = counted(how_many(measured, steps, chosen), "synchronisation")
    asked = Counter(_callers(measured, chosen))
    by = f", most by {asked.most_common(1)[0][0]}" if asked else ""
    return Finding(
        "The host waits for the device",
        steps.share(time),
        f"{waits} in {steps.a_step}{by}; after them the device is idle for {ms(time)}.",
        "Look for .item(), .cpu(), print(loss) and conditions on tensors in the loop: keep values "
        "on the device and read them every so many steps, copy with non_blocking=True.",
    )


def _waits(measured: MeasuredTrace) -> NDArray[np.bool_]:
    trace = measured.trace
    return trace.category(LAUNCHES) & trace.named(lambda name: "Synchronize" in name)


def _gaps_after_waits(measured: MeasuredTrace, steps: Breakdown) -> Cover:
    """Return when the device is idle because the host waited for it and launched nothing ahead."""
    spans, chosen = measured.trace.spans, _waits(measured)
    return steps.gaps_after(spans["start"][chosen] + spans["length"][chosen])


def _callers(measured: MeasuredTrace, chosen: NDArray[np.bool_]) -> list[str]:
    """Return the names of the operators that made these calls, as far as they are known."""
    found = measured.operators
    by = innermost(measured.trace, found.span, found.parent, np.flatnonzero(chosen))
    return [measured.trace.name(int(place)) for place in found.span[by[by != UNKNOWN]]]


def allocator(measured: MeasuredTrace, steps: Breakdown) -> Finding:
    """Look for device memory that is taken and given back in the loop."""
    trace = measured.trace
    chosen = trace.category(LAUNCHES) & trace.named(
        lambda name: name.endswith(("Malloc", "Free", "MallocAsync", "HostAlloc"))
    )
    time = steps.cost_of(measured.trace.when(chosen))
    calls = counted(how_many(measured, steps, chosen), "call")
    return Finding(
        "Memory is taken from the driver in the loop",
        steps.share(time),
        f"{calls} in {steps.a_step} to allocate or free device memory: the device is idle for "
        f"{ms(time)} meanwhile.",
        "The caching allocator should need none after some steps: look for shapes that change and "
        "for empty_cache(); try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    )


def pageable_copies(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Look for copies from memory that is not pinned, while nothing computes."""
    if steps.on_host:
        return None
    trace = measured.trace
    chosen = trace.category(COPIES) & trace.named(lambda name: "Pageable" in name)
    alone = united(steps.covers[COMPUTING], measured.trace.when(chosen))
    time = steps.time_in(alone) - steps.time_in(steps.covers[COMPUTING])
    copies = counted(how_many(measured, steps, chosen), "copy", "copies")
    return Finding(
        "Copies from memory that is not pinned",
        steps.share(time),
        f"{copies} in {steps.a_step} between the device and pageable memory: {ms(time)} in which "
        "nothing computes.",
        "Try pin_memory=True in the data loader, and .to(device, non_blocking=True).",
    )


def memory(measured: MeasuredTrace, _: Breakdown) -> Finding | None:
    """Compare the highest reserved memory of each device with what it has."""
    memory, worst = measured.trace.memory, None
    for device, limit in measured.device_memory.items():
        mine = memory["reserved"][memory["device_id"] == device]
        peak = int(mine.max()) if len(mine) else 0
        if limit and peak / limit >= NEAR and (worst is None or peak / limit > worst[1]):
            worst = device, peak / limit, limit
    if worst is None:
        return None
    device, share, limit = worst
    return Finding(
        "Memory is near its limit",
        share,
        f"{device_label(1, device)} had reserved {share:.0%} of its {limit / 1e9:,.1f} GB.",
        "Past it the allocator frees and retries, which stops the device: try a smaller batch, "
        "activation checkpointing, or set_to_none=True in zero_grad.",
        of="memory",
        weight=LEAST + share - NEAR,
    )
