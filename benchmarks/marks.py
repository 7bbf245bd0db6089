"""Measure what a mark costs from Python and from C, with and without a recording.

The peers are ``torch.profiler.record_function`` and VizTracer's events, each with its own profiler.
``marks.py [ROUNDS]``: a round times every call in every state, and the table shows medians. Garbage
collection stays on, as in a job, because a window keeps an object for each mark.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import viztracer

import dynprof as dp
from benchmarks.idle_step import empty
from benchmarks.tables import print_table
from dynprof import mstx
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.captures.manifest import load_manifest
from dynprof.marks.native.library import FOLDER, HEADERS, PATH, POLL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Call = Callable[[int], float]
    """Receives the number of calls, and returns the seconds that they took."""

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 25
NUMBER = 5_000
"""Calls in a row; the queue of C marks has room for three times as many."""
OUTSIDE, TORCH, ALONE, OWN = "no window", "window of torch", "window of marks alone", "its profiler"
ANYWHERE = (OUTSIDE, TORCH, ALONE)
C_LOOP = """
#include <mstx/ms_tools_ext.h>
void marks(int count) { while (count--) mstxMarkA("here", 0); }
void ranges(int count) { while (count--) mstxRangeEnd(mstxRangeStartA("inside", 0)); }
"""


@contextlib.contextmanager
def window(folder: str, **experimental: object) -> Iterator[None]:
    """Record a window that includes marks; wait until it is saved."""
    asked, before = Path(folder, "asked.json"), dp.status().last_capture
    settings = {"mstx": True, **experimental}
    limits = {"max_seconds": None, "max_memory_mb": None}
    asked.write_text(
        json.dumps({"activities": ["CPU"], "active": 1000, "limits": limits,
                    "experimental_config": settings})
    )  # fmt: skip
    dp.start(asked)
    while dp.status().state != "recording":
        dp.step()
    yield
    dp.stop()
    while (last := dp.status().last_capture) in (None, before):
        dp.step()
        time.sleep(0.001)
    lost = load_manifest(Path(folder, str(last))).lost
    assert not lost, lost  # a mark that is lost costs less


@contextlib.contextmanager
def tracing() -> Iterator[viztracer.VizTracer]:
    """Record with VizTracer."""
    tracer = viztracer.VizTracer(verbose=0)
    tracer.start()
    try:
        yield tracer
    finally:
        tracer.stop()
        tracer.clear()


def python(statement: str, **names: object) -> Call:
    """Return a function that times a statement."""
    return timeit.Timer(statement, "import gc; gc.enable()", globals=names).timeit


def of_dynprof() -> dict[str, Call]:
    """Return the calls of scripts."""
    pushed = "push('inside'); pop()"
    started = "end(start('inside'))"
    return {
        "mstx.mark": python("mark('here')", mark=mstx.mark),
        "mstx.range_push, range_pop": python(pushed, push=mstx.range_push, pop=mstx.range_pop),
        "mstx.range_start, range_end": python(started, start=mstx.range_start, end=mstx.range_end),
        "with mstx.annotate": python("with annotate('inside'): pass", annotate=mstx.annotate),
    }


def of_c(folder: str) -> dict[str, Call]:
    """Return the calls from C, and from Python through ctypes; none without the library."""
    if not PATH.exists():
        return {}
    library = ctypes.CDLL(str(PATH))
    start, end, mark = library.mstxRangeStartA, library.mstxRangeEnd, library.mstxMarkA
    mark.argtypes = start.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    start.restype, end.argtypes = ctypes.c_uint64, [ctypes.c_uint64]
    mark.restype = end.restype = None
    calls = {
        "ctypes: mstxMarkA": python("mark(b'here', None)", mark=mark),
        "ctypes: mstxRangeStartA, mstxRangeEnd": python(
            "end(start(b'inside', None))", start=start, end=end
        ),
        **_in_a_loop_of_c(folder),
    }
    return {name: partial(_and_let_them_be_taken, call) for name, call in calls.items()}


def _in_a_loop_of_c(folder: str) -> dict[str, Call]:
    compiler = shutil.which("cc")
    if compiler is None:
        return {}
    source, made = Path(folder, "loop.c"), Path(folder, "loop.so")
    source.write_text(C_LOOP)
    where = [f"-I{HEADERS}", f"-L{FOLDER}", f"-Wl,-rpath,{FOLDER}"]
    options = ["-O2", "-shared", "-fPIC", *where, "-o", str(made)]
    subprocess.run([compiler, str(source), *options, "-lms_tools_ext"], check=True)
    loop = ctypes.CDLL(str(made))
    return {
        "C: mstxMarkA": partial(_timed, loop.marks),
        "C: mstxRangeStartA, mstxRangeEnd": partial(_timed, loop.ranges),
    }


def _timed(loop: Callable[[int], object], number: int) -> float:
    began_s = time.perf_counter()
    loop(number)
    return time.perf_counter() - began_s


def _and_let_them_be_taken(call: Call, number: int) -> float:
    """Time a call, then wait: the thread that collects C marks must not disturb the next call."""
    took_s = call(number)
    time.sleep(2 * POLL_S)
    return took_s


def round_of(
    folder: str, ours: dict[str, Call], torchs: dict[str, Call]
) -> Iterator[tuple[str, str, float]]:
    """Time each call in each state; yield call, state and seconds."""
    floor = {"an empty Python function": python("empty()", empty=empty)}
    states: list[tuple[str, AbstractContextManager[Any], dict[str, Call]]] = [
        (OUTSIDE, contextlib.nullcontext(), floor | ours | torchs),
        (TORCH, window(folder), ours),
        (ALONE, window(folder, profiler_level="Level_none"), ours),
        (OWN, torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]), torchs),
    ]
    for state, entered, calls in states:
        with entered:
            for name, call in calls.items():
                yield name, state, call(NUMBER)
    with tracing() as tracer:
        for name, statement in {
            "VizTracer: log_instant": "tracer.log_instant('here')",
            "VizTracer: with log_event": "with tracer.log_event('inside'): pass",
        }.items():
            yield name, OWN, python(statement, tracer=tracer)(NUMBER)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {}
    block = "with record_function('inside'): pass"
    with tempfile.TemporaryDirectory() as folder:
        dp.init(folder)
        while SELF_TEST.answer is None:
            time.sleep(0.01)
        ours = of_dynprof() | of_c(folder)
        torchs = {
            "torch: with record_function": python(
                block, record_function=torch.profiler.record_function
            )
        }
        for _ in range(ROUNDS):
            for name, state, seconds in round_of(folder, ours, torchs):
                found.setdefault(name, {}).setdefault(state, []).append(seconds / NUMBER * 1e9)
        dp.shutdown()
    states = (*ANYWHERE, OWN)
    rows = [
        (name, *(_shown(times.get(state)) for state in states)) for name, times in found.items()
    ]
    title = f"A mark, medians of {ROUNDS} rounds of {NUMBER:,} calls"
    print_table(title, ("call", *states), rows)


def _shown(nanoseconds: list[float] | None) -> str:
    return f"{statistics.median(nanoseconds):,.0f} ns" if nanoseconds else "-"


if __name__ == "__main__":
    main()
