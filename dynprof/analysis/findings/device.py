"""What a device does instead of computing, and its memory; why it is idle is in ``idle.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.findings.finding import LEAST, RANKS_FIRST, Finding
from dynprof.analysis.measures.memory.memory_timeline import device_label
from dynprof.analysis.measures.timeline.breakdown import COMMUNICATION, Breakdown, ms

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

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
        f"{RANKS_FIRST}gradient accumulation, larger buckets (bucket_cap_mb), bf16 gradients, or "
        "sharding that overlaps with the backward pass.",
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
