"""Findings about a device: time without computing, its memory, and kernels that could be one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.findings.call_sites import main_place, starters, starters_named
from dynprof.analysis.findings.finding import (
    MIN_FINDING_SHARE,
    RANKS_FIRST,
    Finding,
    how_many,
    longest,
)
from dynprof.analysis.findings.idle import PAGEABLE_MEMORY
from dynprof.analysis.measures.critical_path import Removal
from dynprof.analysis.measures.memory import device_label
from dynprof.analysis.measures.sequence_sources import OUTSIDE, joined_names, launch_calls, sources
from dynprof.analysis.measures.sequences import MAX_SEQUENCES
from dynprof.analysis.measures.timeline.breakdown import COMMUNICATION, COMPUTING, Breakdown, ms
from dynprof.analysis.measures.timeline.steps import host_communication
from dynprof.analysis.reading.events import COPIES
from dynprof.analysis.reading.spans import cover, inside, united
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.sequences import KernelSequence
    from dynprof.analysis.measures.timeline.breakdown import Breakdown

NEAR = 0.9
"""Share of a device's memory from which it is near its limit."""


def exposed_communication(measured: MeasuredTrace, steps: Breakdown) -> Finding:
    """Find collectives that run while nothing computes."""
    trace = measured.trace
    chosen = trace.communication
    sites = [] if steps.on_host else starters(measured, steps, chosen, at_once=True)
    if steps.on_host:
        chosen = host_communication(trace)
    time, whole = steps.parts[COMMUNICATION], steps.time_in(steps.covers[COMMUNICATION])
    alone = "all of it" if time > 0.995 * whole else ms(time)
    return Finding(
        "Communication is exposed",
        steps.share(time),
        f"Collectives run for {ms(whole)} of {steps.a_step}, {alone} while nothing computes."
        f"{starters_named(sites)}",
        f"{RANKS_FIRST}gradient accumulation, larger buckets (bucket_cap_mb), bf16 gradients, or "
        "sharding that overlaps with the backward pass.",
        removal=Removal(work=chosen & measured.in_steps),
        place=main_place(sites),
        at=longest(measured, chosen),
    )


def exposed_copies(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find copies that run alone, except those of pageable memory, which have their own finding."""
    if steps.on_host:
        return None
    trace = measured.trace
    copies = trace.category(COPIES) & ~trace.communication
    copies &= (trace.spans["device"] == steps.device) & ~measured.from_before
    chosen = copies & ~trace.named(lambda name: PAGEABLE_MEMORY in name)
    work = (steps.covers[COMPUTING], steps.covers[COMMUNICATION], trace.when(copies & ~chosen))
    time = steps.time_in(united(*work, trace.when(chosen))) - steps.time_in(united(*work))
    whole = steps.time_in(trace.when(chosen))
    count = counted(how_many(measured, steps, chosen), "copy runs", "copies run")
    sites = starters(measured, steps, chosen, at_once=True)
    return Finding(
        "Copies are exposed",
        steps.share(time),
        f"{count} in {steps.a_step} for {ms(whole)}, {ms(time)} while the device does nothing "
        "else."
        f"{starters_named(sites)}",
        "Copy the next batch in its own stream while this one is computed. Within the device, look "
        "for .contiguous(), .clone() and .to() of data that is already there.",
        removal=Removal(work=chosen & measured.in_steps),
        place=main_place(sites),
        at=longest(measured, chosen),
    )


def memory(measured: MeasuredTrace, _: Breakdown) -> Finding | None:
    """Compare the highest reserved memory of each device with its size."""
    memory, worst = measured.trace.memory, None
    for device, limit in measured.device_memory.items():
        reserved = memory["reserved"][memory["device_id"] == device]
        peak = int(reserved.max()) if len(reserved) else 0
        if limit and peak / limit >= NEAR and (worst is None or peak / limit > worst[1]):
            worst = device, peak / limit, limit
    if worst is None:
        return None
    device, share, limit = worst
    return Finding(
        "Memory is near its limit",
        share,
        f"{device_label(1, device)} had reserved {share:.0%} of its {limit / 1e9:,.1f} GB.",
        "At the limit the allocator frees and retries, which stops the device: try a smaller "
        "batch, activation checkpointing, or set_to_none=True in zero_grad.",
        of="memory",
        weight=MIN_FINDING_SHARE + share - NEAR,
        by_line=False,
    )


_COMPILED = re.compile("Compiled|compiled")
"""Finds operators of torch.compile, such as ``CompiledFunctionBackward``."""
_FUSE = (
    "torch.compile fuses them. Without it, one operator may replace several: torch.addcmul, "
    "F.gelu instead of its formula, or fused=True in the optimizer."
)
_FUSE_COMPILED = (
    "torch.compile made this code and did not fuse them: TORCH_LOGS=fusion,graph_breaks says why. "
    "Its backend may fuse nothing, as aot_eager does."
)


def fusible_kernels(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find elementwise kernels in a row; other findings count the gaps between them."""
    fusible = [one for one in measured.sequences[:MAX_SEQUENCES] if one.saved_ns]
    found = [(one, _in_steps(one, measured, steps)) for one in fusible]
    saved = [int((one.busy_ns - one.longest_ns)[here].sum()) for one, here in found]
    if steps.on_host or not sum(saved):
        return None
    count = sum(int(here.sum()) * len(one.names) for one, here in found)
    worst, here = found[int(np.argmax(saved))]
    (source,) = sources(measured, [worst])
    busiest = np.flatnonzero(here)[worst.busy_ns[here].argmax()]
    where = f" at {source.line}" if source.line else ""
    calls = launch_calls(measured.trace) | {OUTSIDE}
    named = [one for one in source.operators if one not in calls]
    operators = joined_names(named or source.operators, 5)
    time = sum(saved) / steps.count
    each = counted(int(here.sum()) / steps.count, "time")
    return Finding(
        "Kernels that could be one",
        steps.share(time),
        f"{counted(count / steps.count, 'elementwise kernel')} of {steps.a_step} directly follow "
        f"one another, for {ms(time)} beyond the longest of each sequence. Of that "
        f"{ms(max(saved) / steps.count)} in one sequence, {each}{where}: {operators}.",
        _FUSE_COMPILED if any(map(_COMPILED.search, source.operators)) else _FUSE,
        removal=Removal(work=_all_but_the_longest(measured, found)),
        without="Fused,",
        at=(int(worst.begin[busiest]), int(worst.busy_ns[busiest])),
    )


def _all_but_the_longest(
    measured: MeasuredTrace, found: list[tuple[KernelSequence, NDArray[np.bool_]]]
) -> NDArray[np.bool_]:
    """Return the kernels of some runs of sequences, without the longest of each run."""
    length = measured.trace.spans["length"]
    chosen = np.zeros(len(length), bool)
    for one, here in found:
        kernels = one.kernels[here]
        chosen[kernels] = True
        chosen[kernels[np.arange(len(kernels)), length[kernels].argmax(axis=1)]] = False
    return chosen


def _in_steps(one: KernelSequence, measured: MeasuredTrace, steps: Breakdown) -> NDArray[np.bool_]:
    """Return which runs of a sequence are the steps' own work, within them on their device."""
    edges = np.array([(begin, begin + length) for _, begin, length in steps.steps], np.int64)
    of_device = measured.trace.spans["device"][one.kernels[:, 0]] == steps.device
    of_device &= ~measured.from_before[one.kernels[:, 0]]
    return np.asarray(of_device & inside(one.begin, cover(*edges.reshape(-1, 2).T)))
