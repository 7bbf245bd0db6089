"""The verdict on a slow step, from samples, gaps, counters and collections that the test makes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.watch.resources import Collection, Usage
from dynprof.watch.sampler import Gap, Sample, SlowStep
from dynprof.watch.slow_step_analysis import SlowStepAnalysis, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000_000
MAIN, OTHER = 1, 2


def train() -> None:
    """Stand for the loop."""


def forward() -> None:
    """Stand for usual work."""


def write_log() -> None:
    """Stand for the fault."""


def hold() -> None:
    """Stand for another thread's work."""


def poll() -> None:
    """Stand for another thread's usual work."""


def _compiled(name: str, file: str) -> Any:
    scope: dict[str, Any] = {}
    exec(compile(f"def {name}(): pass", file, "exec"), scope)  # noqa: S102
    return scope[name]


all_reduce = _compiled("all_reduce", "/venv/site-packages/torch/distributed/distributed_c10d.py")
wait = _compiled("wait", threading.__file__)
CODES = {id(one.__code__): one.__code__ for one in (
    train, forward, write_log, hold, poll, all_reduce, wait
)}  # fmt: skip


def stack(*functions: Callable[[], None]) -> tuple[int, ...]:
    """Return a stack, from the outermost function."""
    return tuple(value for one in reversed(functions) for value in (id(one.__code__), 0))


def sample(
    at_ms: float, *functions: Any, other: Any = poll, used_ms: float = 0, **more: Any
) -> Sample:
    """Return a sample in which the main thread is in these functions."""
    used = Usage(int(used_ms * MS), int(used_ms * MS), more.get("faults", 0), 0)
    stacks = ((MAIN, stack(*functions)), (OTHER, stack(other)))
    regular = more.get("is_regular", True)
    return Sample(int(at_ms * MS), 0, regular, stacks, more.get("phases", ()), used)


USUAL = [sample(at_ms, train, forward, used_ms=at_ms) for at_ms in range(10, 1000, 50)]
"""A second of usual steps, in which the main thread computes."""


def examined(
    inside: list[Sample], took_ms: float = 300, ranks: int = 1, **known: Any
) -> SlowStepAnalysis:
    """Examine step 50, which began after a second and usually takes 20 ms."""
    step = SlowStep(50, 1000 * MS, int((1000 + took_ms) * MS), 20 * MS, MAIN)
    used_ms = max([1000, *(one.used.thread_ns / MS for one in inside)]) + 10
    after = sample(1000 + took_ms + 10, train, forward, used_ms=used_ms, is_regular=False)
    facts: dict[str, Any] = {"gaps": [], "counters": [], "gpus": [], "collections": []}
    facts |= {"excluded": [(step.began_ns, step.ended_ns)], "names": {OTHER: "writer"}, **known}
    snapshot = Snapshot(ring=[*USUAL, *inside, after], codes=CODES, **facts)
    return SlowStepAnalysis(step, snapshot, ranks=ranks)


def slow(*functions: Any, other: Any = poll, each_ms: int = 10, used_ms: float = 0) -> list[Sample]:
    """Return samples over the whole step, in which the main thread uses so much processor time."""
    return [
        sample(
            1000 + at_ms, *functions, other=other, used_ms=1000 + used_ms * at_ms / 300,
            is_regular=False,
        )
        for at_ms in range(each_ms, 300, each_ms)
    ]  # fmt: skip


def test_the_line_that_takes_longer_is_named() -> None:
    """The innermost function with most of the additional time, and whether it only waits."""
    found = examined(slow(train, write_log))
    assert (found.cause, found.place) == (
        "code",
        f"write_log (test_slow_step_analysis.py:{_line(write_log)})",
    )
    assert (
        found.text
        == f"300 ms more in {found.place}, most of it without a processor: it waits there"
    )
    busy = examined(slow(train, write_log, used_ms=300))
    assert busy.text == f"300 ms more in {found.place}"


def test_a_library_function_is_named_with_the_line_that_called_it() -> None:
    """The script's own line is what its author can change."""
    found = examined(slow(train, write_log, wait))
    line = f"{Path(__file__).name}:{_line(write_log)}"
    assert found.place == f"wait (threading.py:1), called at write_log ({line})"


def test_what_another_thread_did_at_the_same_time_is_named() -> None:
    """Only if it usually does something else."""
    usual, unusual = examined(slow(train, write_log)), examined(slow(train, write_log, other=hold))
    assert "writer" not in usual.text
    assert unusual.text.endswith(
        f"at the same time thread writer was in hold (test_slow_step_analysis.py:{_line(hold)})"
    )


def test_the_rank_that_waits_for_others_is_told_from_the_one_that_works() -> None:
    """A stack in a collective waits; the record says for how long."""
    found = examined(slow(train, all_reduce))
    assert (found.cause, found.waited_in, found.waited_ms) == ("waiting", "all_reduce", 300)
    assert "waiting in all_reduce" in found.text
    assert examined(slow(train, write_log)).waited_ms == 0


def test_an_idle_backward_pass_waits_for_the_other_ranks() -> None:
    """DistributedDataParallel waits in C++ there; a job of one rank has nothing to wait for."""
    backward = _compiled("_engine_run_backward", "/venv/site-packages/torch/autograd/graph.py")
    CODES[id(backward.__code__)] = backward.__code__
    found = examined(slow(train, backward), ranks=2)
    assert (found.cause, found.waited_in) == ("waiting", "the all-reduce of the backward pass")
    assert found.waited_ms > 280
    assert examined(slow(train, backward), ranks=1).cause == "code"
    computing = examined(slow(train, backward, used_ms=300), ranks=2)
    assert (computing.cause, computing.waited_ms) == ("code", 0)


def test_a_step_that_computes_more_is_slow_by_its_code_on_a_busy_machine() -> None:
    """The more it computes, the longer it waits for a processor; else the place is a hint."""
    counters = [(at_ms * MS, {"run_queue_ms": value}) for at_ms, value in [(900, 0), (1310, 160)]]
    computes = examined(slow(train, write_log, used_ms=150), counters=counters)
    assert (computes.cause, computes.place[:9]) == ("code", "write_log")
    starved = examined(slow(train, write_log, used_ms=20), counters=counters)
    assert starved.cause == "no processor"
    assert starved.text.endswith(f"used; most of it in {starved.place}")


@pytest.mark.parametrize("count", [1, 3])
def test_garbage_collections_are_named_before_lines(count: int) -> None:
    """A collection stops all threads, so the line in which it happened is not to blame."""
    collections = [
        Collection((1010 + 80 * one) * MS, (1010 + 80 * one + 240 // count) * MS, 2)
        for one in range(count)
    ]
    found = examined(slow(train, write_log), collections=collections)
    assert found.cause == "garbage collection"
    assert found.text.startswith("gc of generation 2 took 240 ms" if count == 1 else "3 gcs, up to")


def test_usual_collections_are_no_cause() -> None:
    """Collections that every step has explain nothing."""
    usual = [Collection(at * MS, (at + 15) * MS, 1) for at in range(20, 1300, 20)]
    assert examined(slow(train, write_log), took_ms=300, collections=usual).cause == "code"


def test_a_process_that_did_not_run_is_told_from_a_call_that_keeps_the_lock() -> None:
    """Both leave one late sample. A thread that waits for the lock wakes up now and then."""
    late = [sample(1295, train, write_log, used_ms=1000, is_regular=False)]
    stopped = examined(late, gaps=[Gap(1010 * MS, 1290 * MS, is_of_lock=False, used_ns=0)])
    assert (stopped.cause, stopped.text[:37]) == (
        "stopped",
        "the process did not run for 280 ms: i",
    )
    locked = examined(late, gaps=[Gap(1010 * MS, 1290 * MS, is_of_lock=True, used_ns=0)])
    assert locked.cause == "code"
    assert locked.text.endswith(", in a call that keeps Python's lock")


@pytest.mark.parametrize(
    ("name", "cause"), [("throttled_ms", "throttled"), ("run_queue_ms", "no processor")]
)
def test_a_thread_that_got_no_processor_is_told_by_the_counters(name: str, cause: str) -> None:
    """What a counter usually grows by is subtracted: a busy machine explains no single step."""
    times = [(0, 0.0), (900, 90.0), (1310, 330.0)]
    counters = [(at_ms * MS, {name: value}) for at_ms, value in times]
    assert examined(slow(train, write_log), counters=counters).cause == cause
    steady = [(at_ms * MS, {name: at_ms / 10}) for at_ms, _ in times]
    assert examined(slow(train, write_log), counters=steady).cause == "code"


def test_time_spread_over_the_step_names_no_line() -> None:
    """A step that only did everything slower has no place."""
    inside = [*slow(hold)[:10], *slow(poll)[10:20], *slow(write_log)[20:]]
    found = examined(inside)
    assert (found.cause, found.place) == ("spread", "")


def test_a_step_without_a_sample_says_so() -> None:
    """The verdict does not guess."""
    assert examined([]).text == "no sample was taken in it"


def test_phases_come_from_the_script_or_from_stacks() -> None:
    """The script's own phases count first; their times add up to that of the step."""
    loader = _compiled("__next__", "/venv/site-packages/torch/utils/data/dataloader.py")
    CODES[id(loader.__code__)] = loader.__code__
    inside = [
        sample(1100, train, loader, is_regular=False),
        sample(1200, train, write_log, is_regular=False, phases=("step 3", "logging")),
    ]
    assert examined(inside).phases() == {
        "data loading": (100, 0),
        "logging": (200, 0),
        "rest": (0, pytest.approx(20)),
    }


def test_facts_are_those_of_the_step() -> None:
    """Values between samples are interpolated."""
    counters = [(900 * MS, {"written_mb": 5.0}), (1310 * MS, {"written_mb": 45.0})]
    gpu = {"gpu": 0, "sm_mhz": 900, "most_mhz": 1980, "limited_by": ["its power limit"]}
    found = examined(
        slow(train, write_log, used_ms=30), counters=counters, gpus=[(1310 * MS, [gpu])]
    )
    facts = found.evidence()
    assert "the process wrote 40 MB" in facts
    assert "GPU 0 runs at 900 of 1980 MHz, limited by its power limit" in facts


def _line(function: Any) -> int:
    return int(function.__code__.co_firstlineno)
