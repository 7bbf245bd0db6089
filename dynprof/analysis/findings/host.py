"""Findings about a step's time on the host, and about what takes most of it anywhere.

If a device works, the host's time costs only as far as the device is idle during it.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.findings.call_sites import (
    between,
    can_move,
    functions_named,
    lines_named,
    main_place,
    openers,
    places,
    self_time_openers,
    starters,
    starters_named,
)
from dynprof.analysis.findings.finding import (
    LARGE,
    OF_THE_STEP,
    OUT_OF_THE_LOOP,
    SMALL_NS,
    Finding,
    how_many,
    job_directory,
    longest,
    longest_part,
    stacks_command,
)
from dynprof.analysis.findings.idle import longest_idle, mean, of_cause, of_host
from dynprof.analysis.measures.critical_path import (
    Removal,
    main_thread,
    step_threads,
)
from dynprof.analysis.measures.idle import waits_for_work
from dynprof.analysis.measures.timeline.breakdown import (
    COLLECTING,
    COMPILERS,
    COMPILING,
    IDLE,
    RECORDING,
    Breakdown,
    ms,
)
from dynprof.analysis.measures.timeline.kernels import Kind, kinds, short_name
from dynprof.analysis.measures.timeline.launches import UNKNOWN, innermost, launched_by
from dynprof.analysis.measures.timeline.overhead import overhead
from dynprof.analysis.measures.timeline.phase_times import (
    CHECKPOINT,
    LOADING,
    OPTIMIZER,
    RECOMPUTATION,
    phase_spans,
    where_phase,
)
from dynprof.analysis.measures.user_code import place_of, user_frames
from dynprof.analysis.reading.events import CALLS, COLLECTIONS, FRAMES, OPERATORS
from dynprof.analysis.reading.spans import ROOT, parents, self_time, united
from dynprof.analysis.reading.spans import inside as is_inside
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.findings.call_sites import CallSite
    from dynprof.analysis.findings.finding import Moment
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

_MANY_OPERATORS = 500
"""Operators in a step from which small ones are worth a finding."""
_MAX_NEXT = 2
"""Python calls named after the first one, at most, if they take a large part of a step."""
_WAITS = re.compile(r"\b(poll|select|acquire|wait|recv_bytes)\b")
"""Matches the names of functions in which a process waits for its workers."""
_PRODUCTS = ("mm", "gemm", "matmul", "conv", "attention", "cutlass", "linear", "cijk_", "nvjet")
_REDUCED = re.compile(
    r"(?i:bf16|fp?16|half|bfloat|fp8|fp4|e4m3|e5m2|f8f8|[hs](884|1688|16816)|hgemm|tf32)(?!\d)"
    r"|Cijk_\w*_(BBS|BSS|BBH|HHS|HSS|HHH|HBH|HB|F8\w*|B8\w*)_|nvjet_(qq)?[ht]s"
)
"""Matches names of kernels that compute in 8 or 16 bits or in TF32.

``Cijk_`` is of AMD's libraries, which write the types as ``B``, ``H`` and ``S``; ``nvjet_`` is of
cuBLAS, with ``t`` for bfloat16 and ``h`` for float16.
"""
_SMALL_TYPES = {"c10::Half", "c10::BFloat16", "c10::Float8_e4m3fn", "c10::Float8_e5m2"}


def cost(measured: MeasuredTrace, steps: Breakdown, cause: str, where: Cover) -> float:
    """Return the cost of some work of the host: its time, or the idle time of a device.

    The profiler's own time in it does not count.
    """
    if measured.idle is None:
        own = steps.causes[RECORDING]
        return steps.time_in(united(where, own)) - steps.time_in(own)
    pieces = of_cause(measured, cause)
    return mean(steps, pieces) if pieces else 0.0


def _moment(measured: MeasuredTrace, steps: Breakdown, cause: str, where: Cover) -> Moment | None:
    """Return the longest part of some work of the host, or of the idle time of a device."""
    if measured.idle is None:
        return longest_part(steps, where)
    return longest_idle(of_cause(measured, cause))


def _places(
    measured: MeasuredTrace, steps: Breakdown, cause: str, chosen: NDArray[np.bool_]
) -> list[CallSite]:
    """Return where in the user's code some work of the host costs time; may be empty."""
    if measured.idle is None:
        return openers(measured, steps, chosen)
    pieces = of_cause(measured, cause)
    return places(measured, steps, pieces) if pieces else []


def data_loading(measured: MeasuredTrace, steps: Breakdown) -> Finding:
    """Find steps that wait for data."""
    where = steps.causes[LOADING]
    time = cost(measured, steps, LOADING, where)
    alone = measured.trace.named(lambda name: "_SingleProcessDataLoaderIter" in name).any()
    several = measured.trace.named(lambda name: "_MultiProcessingDataLoaderIter" in name).any()
    workers = bool(several and not alone)
    slowest, share = _slowest_frame(measured, steps, where, of_users=not workers)
    said = f", {share:.0%} of it in {place_of(slowest)}" if slowest else ""
    advice = (
        "It runs in the training process: num_workers moves it to worker processes."
        if alone
        else "Try more workers (num_workers), prefetch_factor and persistent_workers=True, and do "
        "less for each sample."
    )
    if by_workers := workers and bool(not slowest or _WAITS.search(slowest)):
        said = (
            ": training waits for batches of its worker processes, which are the bottleneck and "
            "not in this trace"
        )
        if directory := job_directory(measured):
            advice += f" dynprof dump {directory} shows what they execute now, if py-spy is there."
        advice += (
            " To see all that they do, start the job with num_workers=0 and record with stacks "
            f"({stacks_command(measured)}). Or sample a worker, a child of the training process: "
            "py-spy record --idle --pid PID."
        )
    return Finding(
        "The step waits for data",
        steps.share(time),
        f"The data loader keeps {steps.a_step} waiting for {ms(time)}{said}.",
        advice,
        removal=of_host(of_cause(measured, LOADING)),
        by_line=not by_workers,
        place=place_of(slowest) if slowest and not by_workers else "",
        at=_moment(measured, steps, LOADING, where),
    )


def _slowest_frame(
    measured: MeasuredTrace, steps: Breakdown, where: Cover, *, of_users: bool
) -> tuple[str, float]:
    """Return the Python function in which most of a cover passes, and its share; may be empty.

    A function of the user's includes the time of other code that it calls. Only the thread of the
    steps counts, as other threads sleep all the time. The profiler's own time does not count.

    Args:
        measured: The trace.
        steps: Its steps.
        where: The cover.
        of_users: Prefer the user's own functions.
    """
    trace, calls = measured.trace, measured.calls
    start = trace.spans["start"][calls.span]
    inside = is_inside(start, where) & (trace.spans["thread"][calls.span] == main_thread(trace))
    inside &= measured.in_steps[calls.span] & ~is_inside(start, steps.causes[RECORDING])
    frames = inside & trace.category(FRAMES, CALLS)[calls.span]
    if not frames.any():
        return "", 0.0
    users = frames & user_frames(trace)[calls.span]
    of = _nearest(users if of_users and users.any() else frames, inside, calls.parent)
    self_ns = np.maximum(self_time(trace.spans["length"][calls.span], calls.parent)[inside], 0)
    self_ns[_nearest(frames, inside, calls.parent) == ROOT] = 0  # the loader's own mark
    times = np.bincount(
        trace.spans["name"][calls.span[of[of != ROOT]]], weights=self_ns[of != ROOT]
    )
    worst = int(times.argmax())
    return trace.tables["name"][worst], times[worst] / max(1, self_ns.sum())


def _nearest(
    chosen: NDArray[np.bool_], inside: NDArray[np.bool_], parent: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return, for each call inside, itself or its nearest chosen parent; -1 if there is none."""
    found = np.flatnonzero(inside)
    left = np.flatnonzero(~chosen[found])
    while len(left):
        above = parent[found[left]]
        found[left] = np.where((above != ROOT) & inside[above], above, ROOT)
        left = left[found[left] != ROOT]
        left = left[~chosen[found[left]]]
    return found


def garbage(measured: MeasuredTrace, steps: Breakdown) -> Finding:
    """Find Python's garbage collections, which ``gc_detect_threshold`` records."""
    time = cost(measured, steps, COLLECTING, steps.causes[COLLECTING])
    collections = measured.trace.category(COLLECTIONS)
    count = how_many(measured, steps, collections)
    lines = lines_named(_places(measured, steps, COLLECTING, collections), time)
    return Finding(
        "Garbage collection",
        steps.share(time),
        f"Python collects garbage {counted(count, 'time')} in {steps.a_step}, for {ms(time)}"
        f"{lines}.",
        "Try gc.freeze() after set-up, a higher gc.set_threshold(), or gc.disable() with a "
        "gc.collect() every N steps, in the same step on all ranks.",
        removal=of_host(of_cause(measured, COLLECTING)),
        at=_moment(measured, steps, COLLECTING, steps.causes[COLLECTING]),
    )


def compiling(measured: MeasuredTrace, steps: Breakdown) -> Finding:
    """Find compilations by torch.compile inside the recorded steps."""
    time = cost(measured, steps, COMPILING, steps.causes[COMPILING])
    compiles = measured.trace.named(lambda name: COMPILERS in name)
    sites = _places(measured, steps, COMPILING, compiles)
    return Finding(
        "Recompilation",
        steps.share(time),
        f"torch.compile compiles inside the recorded steps, for {ms(time)} of "
        f"{steps.a_step}{lines_named(sites, time)}.",
        "TORCH_LOGS=recompiles says why: mostly shapes that change (mark_dynamic, padding) or "
        "Python values that are compiled as constants.",
        removal=of_host(of_cause(measured, COMPILING)),
        place=main_place(sites),
        at=_moment(measured, steps, COMPILING, steps.causes[COMPILING]),
    )


def between_operators(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find time in which Python runs and no operator does, without another known cause."""
    if not steps.on_host or not measured.trace.category(OPERATORS).any():
        return None
    causes = united(*steps.causes.values())
    time = steps.parts[IDLE] + steps.idle_in(steps.recording) - steps.idle_in(causes)
    known = united(steps.busy, causes)
    sites = between(measured, steps, known)
    lines = functions_named(sites, time)
    return Finding(
        "Python between the operators",
        steps.share(time),
        f"No operator and no collective runs for {ms(time)} of {steps.a_step}{lines}.",
        _about_functions(measured.trace, sites, named=bool(lines)),
        place=main_place(sites),
        at=longest_part(steps, (known[1][:-1], known[0][1:])),
    )


def _about_functions(trace: Trace, sites: list[CallSite], *, named: bool) -> str:
    frames = trace.category(FRAMES)
    if frames.any() and np.isin(step_threads(trace), trace.spans["thread"][frames]).mean() <= 0.5:
        return (
            "The threads of these steps began within the window, and torch records stacks only of "
            "older threads. Record with --backend python, or use a pool of threads."
        )
    if named:
        return OUT_OF_THE_LOOP if can_move(sites) else OF_THE_STEP
    where = "The flame graph shows which functions. " if frames.any() else ""
    return f"{where}The usual causes are loops over tensors, data loading, logging and .item()."


def small_operators(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find operators that take hardly longer than their dispatch."""
    trace, found = measured.trace, measured.operators
    self_ns = found.self_ns[(trace.category(OPERATORS) & measured.in_steps)[found.span]]
    count, small = len(self_ns) / max(1, steps.count), self_ns[self_ns < SMALL_NS]
    if not steps.on_host or count < _MANY_OPERATORS or not len(small):
        return None
    time = float(small.sum()) / max(1, steps.count)
    return Finding(
        "Many small operators",
        steps.share(time),
        f"Of {counted(count, 'operator')} in {steps.a_step}, {len(small) / len(self_ns):.0%} take "
        f"less than {SMALL_NS // 1000} us of self time, {ms(time)} together.",
        "Try torch.compile, which fuses them, a larger batch, or foreach=True in the optimizer.",
        by_line=False,
    )


def costliest(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Name what takes most of the time: it may be fine, but it is where to begin."""
    included, of_python = work_of(measured, steps), not measured.trace.category(OPERATORS).any()
    found = kinds(measured.trace, measured.operators, included)
    work = (kind for kind in found if kind.core != "COMMUNICATION")
    kind = next((kind for kind in work if COMPILERS not in kind.name), None)
    count = max(1, steps.count)
    if kind is None or steps.share(kind.total / count) < LARGE:
        return None
    of_them = f"of them in {steps.a_step}"
    chosen = included & measured.trace.named(kind.name.__eq__)
    most, takes = -1.0, ms(kind.total / count)
    if steps.on_host:  # includes everything that is called there
        most = steps.time_in(measured.trace.when(chosen))
        if most > kind.total / count and ms(most) != takes:
            takes += f" itself, {ms(most)} with what it calls"
        lines = self_time_openers(measured, steps, kind.name, chosen)
        sites = f"{lines_named(lines, kind.total / count)}."
    else:
        sites = "." + starters_named(starters(measured, steps, chosen))
    if steps.on_host and of_python:
        sites += _next_ones(measured, steps, included, list(itertools.islice(work, _MAX_NEXT)))
    return Finding(
        f"{kind.name if steps.on_host else short_name(kind.name)} takes the most",
        steps.share(kind.total / count),
        f"{counted(kind.count / count, f'{of_them} takes', f'{of_them} take')} {takes}{sites}",
        _advice_on(measured, kind.name, chosen),
        removal=None if steps.on_host else Removal(work=chosen),
        most=most,
        at=longest(measured, chosen),
    )


def work_of(measured: MeasuredTrace, steps: Breakdown) -> NDArray[np.bool_]:
    """Return the spans that are work of the steps, on their device.

    Plain Python counts only on the threads of the steps, without the profiler's own calls.
    """
    included: NDArray[np.bool_] = measured.in_steps
    if not steps.on_host:
        included = included & (measured.trace.spans["device"] == steps.device)
    elif not measured.trace.category(OPERATORS).any():
        included = included & _in_threads_of_steps(measured) & ~overhead(measured.trace)
    return included


def _next_ones(
    measured: MeasuredTrace, steps: Breakdown, included: NDArray[np.bool_], found: list[Kind]
) -> str:
    """Name what else takes a large part of the steps: it may be what the first one waits for."""
    said = []
    for kind in found:
        each = kind.total / max(1, steps.count)
        if steps.share(each) >= LARGE:
            chosen = included & measured.trace.named(kind.name.__eq__)
            lines = lines_named(self_time_openers(measured, steps, kind.name, chosen), each)
            said.append(f"{kind.name}, {ms(each)}{lines}")
    return f" Next comes {'; then '.join(said)}." if said else ""


def _in_threads_of_steps(measured: MeasuredTrace) -> NDArray[np.bool_]:
    """Return the spans of the threads that end steps; other threads mostly wait.

    If several threads end steps, their waits for work do not count: other threads do that work.
    The waits of a single thread count, as they are part of its step.
    """
    threads = step_threads(measured.trace)
    found: NDArray[np.bool_] = np.isin(measured.trace.spans["thread"], threads)
    return found & ~waits_for_work(measured.trace, measured.calls) if len(threads) > 1 else found


def _advice_on(measured: MeasuredTrace, name: str, chosen: NDArray[np.bool_]) -> str:
    on_host = measured.breakdown.on_host
    if any(part in name.lower() for part in _PRODUCTS):
        look = _where_sizes_are(measured)
        if on_host:
            return (
                f"{look} for small sizes: a larger batch or torch.compile makes better use of the "
                "CPU. See whether torch.get_num_threads() is the number of its cores."
            )
        reduced = _REDUCED.search(name) or _input_types(measured, chosen) & _SMALL_TYPES
        autocast = "" if reduced else "; try torch.autocast with bfloat16"
        return f"{look} for sizes that are small, odd or not multiples of 8{autocast}."
    if on_host and _in_flame_graph(measured, name):
        return f"{_IN_FLAME_GRAPH}: is each call needed, and could one replace several?"
    return "Is each of them needed, and could one replace several?"


def _where_sizes_are(measured: MeasuredTrace) -> str:
    """Return the start of advice on the sizes of inputs: where the reader finds them."""
    if any(work.dims for work in measured.operator_work if work.tflops or work.gb_s):
        return "Look under Efficiency of operators on the page"
    if len(measured.trace.tables["dims"]) > 1:
        return "Look in operator_details.csv, which dynprof analyse writes,"
    return "Record with record_shapes, and look"


_IN_FLAME_GRAPH = "Search for it in the flame graph"


def _in_flame_graph(measured: MeasuredTrace, name: str) -> bool:
    """Return whether the flame graph of the host has a name."""
    names = measured.trace.tables["name"]
    return any(names[code] == name for code in set(measured.tree.name))


def _input_types(measured: MeasuredTrace, chosen: NDArray[np.bool_]) -> set[str]:
    """Return the types in which the operators compute that are chosen, or launched the chosen."""
    found, started, taken = measured.operators, measured.launches, measured.operator_costs
    launched = launched_by(measured.trace, started, found.span, found.parent)[chosen[started.work]]
    place = np.append(np.flatnonzero(chosen[found.span]), launched[launched != UNKNOWN])
    inside = taken.inside[place]
    codes = np.unique(taken.code[inside[inside != ROOT]])
    return {taken.known[code].dtype for code in codes.tolist()}


def optimizer(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find an optimizer that takes a large part of the step."""
    time = cost(measured, steps, OPTIMIZER, where_phase(measured.trace, OPTIMIZER))
    if steps.on_host and steps.share(time) < LARGE:
        return None
    idle = "" if steps.on_host else "leaves the device idle for "
    sites = _places(measured, steps, OPTIMIZER, phase_spans(measured.trace, OPTIMIZER))
    return Finding(
        "The optimizer takes long",
        steps.share(time),
        f"It {idle or 'takes '}{ms(time)} of {steps.a_step}{lines_named(sites, time)}.",
        "Try fused=True or foreach=True, and a larger batch or gradient accumulation.",
        removal=of_host(of_cause(measured, OPTIMIZER)),
        place=main_place(sites),
        at=_moment(measured, steps, OPTIMIZER, where_phase(measured.trace, OPTIMIZER)),
    )


def recomputation(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Find activations that activation checkpointing computes again in the backward pass."""
    trace, again = measured.trace, phase_spans(measured.trace, RECOMPUTATION)
    if not again.any():
        return None
    if steps.on_host:
        time, of = steps.time_in(trace.when(again)), steps.a_step
        sites = openers(measured, steps, again)
    else:
        work = _launched_in(measured, again)
        time, of = steps.time_in(trace.when(work)), f"{steps.a_step} on the device"
        sites = starters(measured, steps, work, at_once=True)
    return Finding(
        "Activations are computed again",
        steps.share(time),
        f"The backward pass runs forward work again for {ms(time)} of {of}, because of activation "
        f"checkpointing.{starters_named(sites)}",
        "It saves memory for time: checkpoint fewer layers while memory is free, or keep the "
        "results of products (create_selective_checkpoint_contexts of torch.utils.checkpoint).",
        removal=None if steps.on_host else Removal(work=work & measured.in_steps),
        without="Without checkpoints",
        place=main_place(sites),
        at=longest(measured, again if steps.on_host else work),
    )


def _launched_in(measured: MeasuredTrace, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the work of the steps' device that was launched while a chosen span was open."""
    trace, started = measured.trace, measured.launches
    span, known = np.flatnonzero(chosen), started.call != UNKNOWN
    parent = parents(*(trace.spans[name][span] for name in ("start", "length", "thread")))
    inside = innermost(trace, span, parent, started.call[known]) != ROOT
    found = np.zeros(len(chosen), bool)
    found[started.work[known][inside]] = True
    found &= trace.spans["device"] == measured.breakdown.device
    return found


def checkpoint(measured: MeasuredTrace, steps: Breakdown) -> Finding:
    """Find checkpoints that are written inside the step."""
    time = cost(measured, steps, CHECKPOINT, steps.causes[CHECKPOINT])
    sites = _places(measured, steps, CHECKPOINT, phase_spans(measured.trace, CHECKPOINT))
    average = " on average" if steps.count > 1 else ""
    return Finding(
        "Checkpoints hold the step up",
        steps.share(time),
        f"Saving takes {ms(time)} of {steps.a_step}{average}{lines_named(sites, time)}.",
        "Try torch.distributed.checkpoint.async_save, or save less often.",
        removal=of_host(of_cause(measured, CHECKPOINT)),
        place=main_place(sites),
        at=_moment(measured, steps, CHECKPOINT, steps.causes[CHECKPOINT]),
    )
