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


def _compiled(name: str, file: str, body: str = "pass") -> Any:
    scope: dict[str, Any] = {}
    exec(compile(f"def {name}():\n {body}", file, "exec"), scope)  # noqa: S102
    return scope[name]


all_reduce = _compiled("all_reduce", "/venv/site-packages/torch/distributed/distributed_c10d.py")
wait = _compiled("wait", threading.__file__)
load = _compiled("load", "/job/data.py", "a = 1\n b = 2\n c = 3")
CODES = {id(one.__code__): one.__code__ for one in (
    train, forward, write_log, hold, poll, all_reduce, wait, load
)}  # fmt: skip


def stack(*functions: Callable[[], None], line: int = 0) -> tuple[int, ...]:
    """Return a stack, from the outermost function; the innermost is at this line, if given."""
    values = [value for one in reversed(functions) for value in (id(one.__code__), 0)]
    lines = functions[-1].__code__.co_lines()
    values[1] = next((first for first, _, number in lines if number == line), 0)
    return tuple(values)


def sample(
    at_ms: float, *functions: Any, other: Any = poll, used_ms: float = 0, **more: Any
) -> Sample:
    """Return a sample in which the main thread is in these functions."""
    process_ms, queued_ms = more.get("process_ms", used_ms), more.get("queued_ms", 0)
    times = (int(ms * MS) for ms in (used_ms, process_ms, queued_ms))
    thread_ns, process_ns, queued_ns = times
    used = Usage(thread_ns, process_ns, more.get("faults", 0), 0, queued_ns)
    stacks = ((MAIN, stack(*functions, line=more.get("line", 0))), (OTHER, stack(other)))
    regular = more.get("is_regular", True)
    return Sample(int(at_ms * MS), 0, regular, stacks, more.get("phases", ()), used)


USUAL = [sample(at_ms, train, forward, used_ms=at_ms) for at_ms in range(10, 1000, 50)]
"""A second of usual steps, in which the main thread computes."""


def examined(
    inside: list[Sample], took_ms: float = 300, ranks: int = 1, **known: Any
) -> SlowStepAnalysis:
    """Examine step 50, which began after a second, usually takes 20 ms, and is overdue at 30.

    Args:
        inside: Its samples.
        took_ms: How long it took.
        ranks: The number of ranks.
        known: Parts of the snapshot; ``before`` has samples of other usual steps.
    """
    step = SlowStep(50, 1000 * MS, int((1000 + took_ms) * MS), 20 * MS, MAIN, 30 * MS)
    used_ms = max([1000, *(one.used.thread_ns / MS for one in inside)]) + 10
    queued_ms = max([0, *(one.used.queued_ns / MS for one in inside)])
    after = sample(
        1000 + took_ms + 10, train, forward, used_ms=used_ms, queued_ms=queued_ms, is_regular=False
    )
    facts: dict[str, Any] = {"gaps": [], "counters": [], "gpus": [], "collections": []}
    ring = sorted([*known.pop("before", []), *USUAL], key=lambda one: one.at_ns)
    facts |= {"excluded": [(step.began_ns, step.ended_ns)], "names": {OTHER: "writer"}, **known}
    snapshot = Snapshot(ring=[*ring, *inside, after], codes=CODES, **facts)
    return SlowStepAnalysis(step, snapshot, ranks=ranks)


def slow(
    *functions: Any,
    other: Any = poll,
    each_ms: int = 10,
    used_ms: float = 0,
    queued_ms: float = 0,
    process_ms: float = 0,
) -> list[Sample]:
    """Return samples over the whole step, in which the main thread uses and waits for CPUs.

    Args:
        functions: Where it is.
        other: Where the other thread is.
        each_ms: The time between two samples.
        used_ms: CPU time of the main thread.
        queued_ms: Its time in which it waits for a CPU.
        process_ms: CPU time of the other threads.
    """
    return [
        sample(
            1000 + at_ms, *functions, other=other, used_ms=1000 + used_ms * at_ms / 300,
            process_ms=1000 + (used_ms + process_ms) * at_ms / 300,
            queued_ms=queued_ms * at_ms / 300, is_regular=False,
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
    assert found.text == f"280 ms more in {found.place}, mostly off-CPU: it waits there"
    busy = examined(slow(train, write_log, used_ms=300))
    assert busy.text == f"280 ms more in {found.place}"


def test_no_cause_has_taken_more_than_the_additional_time() -> None:
    """Counters of a whole second, of several CPUs or of other threads may say more."""
    starved = examined(slow(train, write_log, queued_ms=320))
    assert starved.text.startswith("the training thread waited 280 ms longer than usual for a CPU")
    assert any("for a CPU" in fact for fact in starved.evidence())
    gap = Gap(1000 * MS, 1300 * MS, is_of_lock=False, used_ns=0, queued_ns=0)
    assert "did not run for 280 ms" in examined(slow(train, write_log), gaps=[gap]).text
    counters = [(at_ms * MS, {"throttled_ms": ms}) for at_ms, ms in [(900, 0.0), (1310, 900.0)]]
    assert "for 280 ms" in examined(slow(train, write_log), counters=counters).text
    assert examined(slow(train, all_reduce)).text.startswith("280 ms more waiting")


def test_a_wait_for_a_cpu_needs_a_sample_in_the_step() -> None:
    """Between samples before and after the step, the thread may have waited at any time."""
    before = sample(999, train, forward, used_ms=1000, queued_ms=0)
    after = sample(1301, train, forward, used_ms=1000, queued_ms=280, is_regular=False)
    assert examined([before, after]).cause == "unknown"


def test_a_sampler_that_waited_for_a_cpu_has_seen_no_call_that_holds_the_gil() -> None:
    """A step that sleeps on a busy machine holds no GIL."""
    late = [sample(1295, train, write_log, used_ms=1000, is_regular=False)]
    gap = Gap(1010 * MS, 1290 * MS, is_of_lock=True, used_ns=0, queued_ns=250 * MS)
    assert "it waits there" in examined(late, gaps=[gap]).text


def test_lines_of_one_function_that_share_the_time_are_named_together() -> None:
    """Its caller has most of the time, too, but is not where it is lost."""
    inside = [
        sample(1000 + at_ms, train, load, line=2 + at_ms // 100, used_ms=1000, is_regular=False)
        for at_ms in range(10, 300, 10)
    ]
    found = examined(inside)
    assert found.place == "load (data.py:2, 3, 4)"
    assert found.text.startswith("280 ms more in load (data.py:2, 3, 4), mostly off-CPU")
    halves = examined([*inside[:15], *slow(train, write_log)[15:]])
    assert halves.place == f"train ({Path(__file__).name}:{_line(train)})"


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
    """The more it computes, the longer it waits for a CPU; else the place is a hint."""
    computes = examined(slow(train, write_log, used_ms=150, queued_ms=160))
    assert (computes.cause, computes.place[:9]) == ("code", "write_log")
    starved = examined(slow(train, write_log, used_ms=20, queued_ms=160))
    assert starved.cause == "no CPU"
    assert starved.text.endswith(f"; most of it in {starved.place}")


@pytest.mark.parametrize(("process_ms", "who"), [(10, "other processes"), (300, "its own threads")])
def test_who_used_the_cpus_is_told_by_the_time_of_the_own_process(
    process_ms: float, who: str
) -> None:
    """A process that used little of its CPUs was kept waiting by others."""
    inside = slow(train, write_log, used_ms=20, queued_ms=270, process_ms=process_ms)
    assert f"for a CPU, which {who} used (" in examined(inside).text


def test_a_wait_for_a_cpu_that_ended_before_the_step_was_overdue_is_seen() -> None:
    """The counters are read when the step is overdue; the samples have the wait before that."""
    inside = [sample(1010, train, forward, used_ms=1000, queued_ms=5, is_regular=False)]
    inside += [
        sample(at_ms, train, write_log, used_ms=1010, queued_ms=200, is_regular=False)
        for at_ms in range(1215, 1300, 5)
    ]
    counters = [(at_ms * MS, {"throttled_ms": 0.0}) for at_ms in (900, 1030, 1310)]
    assert examined(inside, counters=counters).cause == "no CPU"


@pytest.mark.parametrize("count", [1, 3])
def test_garbage_collections_are_named_before_lines(count: int) -> None:
    """A collection stops all threads, so the line in which it happened is not to blame."""
    collections = [
        Collection((1010 + 80 * one) * MS, (1010 + 80 * one + 240 // count) * MS, 2)
        for one in range(count)
    ]
    found = examined(slow(train, write_log), collections=collections)
    assert found.cause == "garbage collection"
    one, several = "garbage collection of generation 2 took 240 ms", "3 garbage collections, up to"
    assert found.text.startswith(one if count == 1 else several)


def test_usual_collections_are_no_cause() -> None:
    """Collections that every step has explain nothing."""
    usual = [Collection(at * MS, (at + 15) * MS, 1) for at in range(20, 1300, 20)]
    assert examined(slow(train, write_log), took_ms=300, collections=usual).cause == "code"


def test_a_process_that_did_not_run_is_told_from_a_call_that_holds_the_gil() -> None:
    """Both leave one late sample. A thread that waits for the GIL wakes up now and then."""
    late = [sample(1295, train, write_log, used_ms=1000, is_regular=False)]
    stopped = examined(
        late, gaps=[Gap(1010 * MS, 1290 * MS, is_of_lock=False, used_ns=0, queued_ns=0)]
    )
    assert (stopped.cause, stopped.text[:37]) == (
        "stopped",
        "the process did not run for 280 ms: i",
    )
    locked = examined(
        late, gaps=[Gap(1010 * MS, 1290 * MS, is_of_lock=True, used_ns=0, queued_ns=0)]
    )
    assert locked.cause == "code"
    assert locked.text.endswith(", in a call that holds the GIL")


def test_a_throttled_cgroup_is_told_by_its_counter() -> None:
    """What it usually grows by is subtracted: a steady limit explains no single step."""
    times = [(0, 0.0), (900, 90.0), (1310, 330.0)]
    counters = [(at_ms * MS, {"throttled_ms": value}) for at_ms, value in times]
    assert examined(slow(train, write_log), counters=counters).cause == "throttled"
    steady = [(at_ms * MS, {"throttled_ms": at_ms / 10}) for at_ms, _ in times]
    assert examined(slow(train, write_log), counters=steady).cause == "code"


@pytest.mark.parametrize("overdue", [0.0, 240.0])
def test_a_cgroup_throttled_before_the_step_was_overdue_is_named(overdue: float) -> None:
    """The reading at that moment may have the throttling already."""
    times = [(0, 0.0), (900, 0.0), (1030, overdue), (1310, 240.0)]
    counters = [(at_ms * MS, {"throttled_ms": value}) for at_ms, value in times]
    assert examined(slow(train, write_log), counters=counters).cause == "throttled"


def test_a_stop_while_the_cgroup_was_throttled_at_all_is_no_stop() -> None:
    """The counter has the time of one CPU's queue, which may be less than the stop."""
    late = [sample(1295, train, write_log, used_ms=1000, is_regular=False)]
    gaps = [Gap(1010 * MS, 1290 * MS, is_of_lock=False, used_ns=0, queued_ns=0)]
    counters = [(at_ms * MS, {"throttled_ms": ms}) for at_ms, ms in [(900, 0.0), (1310, 30.0)]]
    found = examined(late, gaps=gaps, counters=counters)
    assert (found.cause, "SIGSTOP" in found.text) == ("throttled", False)


def test_a_sampler_that_waited_for_a_cpu_has_seen_no_stop() -> None:
    """A stopped thread waits in no run queue."""
    late = [sample(1295, train, write_log, used_ms=1000, is_regular=False)]
    gap = Gap(1010 * MS, 1290 * MS, is_of_lock=False, used_ns=0, queued_ns=250 * MS)
    assert examined(late, gaps=[gap]).cause == "code"


def test_a_sampler_that_paused_alone_has_seen_no_stop() -> None:
    """A sample shows a line that explains the step; with the whole time it was a stop."""
    late = [sample(1250, train, write_log, used_ms=1000, is_regular=False)]
    gaps = [Gap(1030 * MS, at_ms * MS, is_of_lock=False, used_ns=0, queued_ns=0)
            for at_ms in (1200, 1280)]  # fmt: skip
    assert [examined(late, gaps=[gap]).cause for gap in gaps] == ["code", "stopped"]
    assert examined([], gaps=gaps[:1]).cause == "stopped"


def test_time_spread_over_the_step_names_no_line() -> None:
    """A step that only did everything slower has no place."""
    inside = [*slow(hold)[:10], *slow(poll)[10:20], *slow(write_log)[20:]]
    found = examined(inside)
    assert (found.cause, found.place) == ("spread", "")


def test_a_step_without_a_sample_says_so() -> None:
    """The verdict does not guess."""
    assert examined([]).text == "no sample covers the additional time"


@pytest.mark.parametrize("at_ms", [5, 16, 29])
def test_a_sample_in_the_usual_time_names_no_line(at_ms: float) -> None:
    """It shows what usual steps do then; a fault that follows is in no sample."""
    early = sample(1000 + at_ms, train, forward, used_ms=1000, is_regular=False)
    found = examined([early], took_ms=70)
    assert (found.cause, found.place) == ("unknown", "")
    assert found.unseen_ms == 50
    fault = sample(1035, train, write_log, used_ms=1000, is_regular=False)
    named = examined([early, fault], took_ms=70)
    assert named.place.startswith("write_log ")
    assert named.text.startswith("up to 50 ms more in ")


def test_another_threads_line_in_the_usual_time_is_not_named() -> None:
    """The sample says nothing about the additional time."""
    early = sample(1010, train, forward, other=hold, is_regular=False)
    fault = sample(1035, train, write_log, is_regular=False)
    assert "writer" not in examined([early, fault], took_ms=70).text
    late = sample(1035, train, write_log, other=hold, is_regular=False)
    assert "thread writer was in hold" in examined([early, late], took_ms=70).text


def test_a_usual_line_after_an_unseen_delay_is_not_named() -> None:
    """The step was held up before its first sample, and then did what steps do."""
    late = [sample(at_ms, train, forward, used_ms=at_ms) for at_ms in (1031, 1036)]
    found = examined(late, took_ms=40)
    assert (found.cause, found.place) == ("unknown", "")
    assert found.text == "the samples show only lines in which usual steps are, too"


def test_one_sample_of_a_line_that_is_often_seen_does_not_name_it() -> None:
    """A delayed step passes such lines at any moment; a rare line is no coincidence."""
    usual = [sample(at_ms, train, hold, used_ms=at_ms) for at_ms in range(10, 400, 50)]
    late = [sample(1031, train, hold, used_ms=1000, is_regular=False)]
    found = examined(late, took_ms=44, before=usual)
    assert (found.cause, found.place) == ("unknown", "")
    assert examined(late, took_ms=100, before=usual).cause == "unknown"  # it is not spread
    twice = [*late, sample(1042, train, hold, used_ms=1000, is_regular=False)]
    assert examined(twice, took_ms=44, before=usual).place.startswith("hold ")
    assert examined(late, took_ms=44, before=usual[:1]).place.startswith("hold ")


def test_a_usual_line_that_takes_much_longer_is_named() -> None:
    """Its samples span more than its usual time; an earlier sample makes up for shorter spans."""
    late = [sample(at_ms, train, forward, used_ms=1000) for at_ms in range(1031, 1070, 5)]
    assert examined(late, took_ms=70).place.startswith("forward ")
    both = [sample(1010, train, forward, used_ms=1000), *late[:2]]
    assert examined(both, took_ms=40).place.startswith("forward ")


def test_a_delay_that_an_early_sample_shows_is_named() -> None:
    """The late samples show usual lines, as the step was held up before them."""
    inside = [sample(1010, train, write_log, used_ms=1000, is_regular=False)]
    inside += [sample(at_ms, train, forward, used_ms=1000) for at_ms in (1031, 1036)]
    assert examined(inside, took_ms=40).place.startswith("write_log ")


def test_slow_steps_of_one_kind_share_cause_and_place() -> None:
    """Collections of young objects are not those of all, and a throttled group has no place."""
    young, old = ([Collection(1010 * MS, 1290 * MS, generation)] for generation in (0, 2))
    line = slow(train, write_log)
    kinds = [examined(line, collections=found).verdict for found in (young, old)]
    assert [(cause, generation) for cause, _, generation in kinds] == [
        ("garbage collection", 0), ("garbage collection", 2),
    ]  # fmt: skip
    assert kinds[0][1].startswith("write_log ")
    elsewhere = examined(slow(train, hold), collections=old).verdict
    assert elsewhere[1].startswith("hold ")
    starved = [examined(slow(train, one, queued_ms=280)).verdict for one in (write_log, hold)]
    assert starved[0][0] == starved[1][0] == "no CPU"
    assert starved[0] != starved[1]
    counters = [(at_ms * MS, {"throttled_ms": ms}) for at_ms, ms in [(900, 0.0), (1310, 280.0)]]
    assert examined(line, counters=counters).verdict == ("throttled", "", 0)


def test_phases_come_from_the_script_or_from_stacks() -> None:
    """The script's own phases count first; no sample shows the usual time of this step."""
    loader = _compiled("__next__", "/venv/site-packages/torch/utils/data/dataloader.py")
    CODES[id(loader.__code__)] = loader.__code__
    inside = [
        sample(1100, train, loader, is_regular=False),
        sample(1200, train, write_log, is_regular=False, phases=("step 3", "logging")),
    ]
    assert examined(inside).phases() == {
        "data loading": (80, 0),
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
