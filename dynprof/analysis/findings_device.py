"""What keeps a device from computing: idling, waiting, moving data; and its memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.breakdown import COMMUNICATION, IDLE, Breakdown, ms
from dynprof.analysis.finding import LEAST, SMALL_NS, Finding, in_steps
from dynprof.analysis.memory import device_label
from dynprof.analysis.operators import OPERATORS
from dynprof.analysis.steps import LAUNCHES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.capture import Capture

_MANY_KERNELS = 100
NEAR = 0.9
"""Memory is near its limit from this share on."""


def exposed_communication(_: Capture, steps: Breakdown) -> Finding:
    """Look for collectives that run while nothing computes."""
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


def idle_device(capture: Capture, steps: Breakdown) -> Finding | None:
    """Look for a device that no kernel keeps busy, and whether kernels are too small to."""
    if steps.on_host:
        return None
    kernels = capture.trace.spans["length"][capture.trace.category("kernel")]
    count = len(kernels) / max(1, len(steps.steps))
    middle = float(np.median(kernels))
    time = steps.parts[IDLE]
    if count >= _MANY_KERNELS and middle < SMALL_NS:
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


def synchronisations(capture: Capture, steps: Breakdown) -> Finding | None:
    """Look for calls in which the host waits for the device."""
    trace = capture.trace
    chosen = trace.category(*LAUNCHES) & trace.named(lambda name: "Synchronize" in name)
    time, count = in_steps(capture, chosen)
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


def allocator(capture: Capture, steps: Breakdown) -> Finding:
    """Look for device memory that is taken and given back in the loop."""
    trace = capture.trace
    chosen = trace.category(*LAUNCHES) & trace.named(
        lambda name: name.endswith(("Malloc", "Free", "MallocAsync", "HostAlloc"))
    )
    time, count = in_steps(capture, chosen)
    return Finding(
        "Memory is taken from the driver in the loop",
        steps.share(time),
        f"{count:,.1f} calls a step that allocate or free device memory take {ms(time)}.",
        "The caching allocator should need none after some steps: look for shapes that change and "
        "for empty_cache(); try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    )


def pageable_copies(capture: Capture, steps: Breakdown) -> Finding:
    """Look for copies from memory that is not pinned."""
    trace = capture.trace
    chosen = trace.category("gpu_memcpy") & trace.named(lambda name: "Pageable" in name)
    time, count = in_steps(capture, chosen)
    return Finding(
        "Copies from memory that is not pinned",
        steps.share(time),
        f"{count:,.1f} copies a step between the device and pageable memory take {ms(time)}.",
        "Try pin_memory=True in the data loader, and .to(device, non_blocking=True).",
    )


def memory(capture: Capture, _: Breakdown) -> Finding | None:
    """Compare the highest reserved memory of each device with what it has."""
    memory, worst = capture.trace.memory, None
    for number, limit in capture.device_memory.items():
        mine = memory["reserved"][memory["device_id"] == number]
        peak = int(mine.max()) if len(mine) else 0
        if limit and peak / limit >= NEAR and (worst is None or peak / limit > worst[1]):
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
        weight=LEAST + share - NEAR,
    )
