"""Each finding, next to a similar trace with another cause; with its place and its saving."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.findings.call_sites import openers
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.phase_times import CHECKPOINT, phase_spans
from dynprof.analysis.measures.user_code import function_of
from tests.unit.analysis.findings.given_spans import HEALTHY, MS, STEP_MS, Span, found, measured
from tests.unit.analysis.findings.planted import (
    BUSY,
    EARLY,
    FREE,
    HOST,
    LATE,
    OTHER,
    QUEUE,
    STEP,
    Planted,
    only,
)

if TYPE_CHECKING:
    from pathlib import Path

EXPOSED, COPIES = "Communication is exposed", "Copies are exposed"
PINNED = "Copies from memory that is not pinned"
WAITS = "The step waits for data"
BETWEEN, SMALL = "Python between the operators", "Many small operators"
IN_OPERATOR = "aten::mm takes the most"

PAIRS: dict[str, tuple[list[Span], list[Span], str]] = {
    "Python or an operator": (
        [("aten::mm", "cpu_op", 0, 24)], [("aten::mm", "cpu_op", 0, 99)], BETWEEN),
    "Python or the loader": (
        [("aten::mm", "cpu_op", 0, 20)],
        [("aten::mm", "cpu_op", 0, 20), ("dataloader", "user_annotation", 20, 79.5)], BETWEEN),
    "many small operators or few": (
        [("aten::add", "cpu_op", n * 0.16, 0.009) for n in range(600)],
        [("aten::add", "cpu_op", n * 0.2, 0.009) for n in range(499)], SMALL),
    "small operators or longer ones": (
        [("aten::add", "cpu_op", n * 0.16, 0.0099) for n in range(600)],
        [("aten::add", "cpu_op", n * 0.16, 0.0101) for n in range(600)], SMALL),
    "one operator or as much of several": (
        [("aten::mm", "cpu_op", 0, 60)],
        [(f"aten::mm_{n}", "cpu_op", 3 * n, 3) for n in range(20)], IN_OPERATOR),
    "a collection or a function that is called like one": (
        [*HEALTHY, ("collection of generation 2", "gc", 50, 20)],
        [*HEALTHY, ("collection of generation 2", "cpu_op", 50, 11)], "Garbage collection"),
    "compiling or the compiled graph": (
        [*HEALTHY, ("backend_compile (dynamo_timed)", "user_annotation", 10, 25)],
        [*HEALTHY, ("CompiledFunction", "user_annotation", 10, 25)], "Recompilation"),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_on_the_host(tmp_path: Path, pair: str) -> None:
    """Without a device: the first trace has the flaw, the second an equal step without it."""
    flawed, other, title = PAIRS[pair]
    assert title in found(measured(tmp_path, flawed))
    assert title not in found(measured(tmp_path, other))


def test_the_line_between_operators_is_named(tmp_path: Path) -> None:
    """The line where the steps' thread was, without the operators that it called."""
    spans: list[Span] = [
        ("train.py(8): main", "python_function", 0, 100),
        ("data.py(40): augment", "python_function", 10, 60),
        ("numpy/random.py(3): shuffle", "python_function", 12, 20),
        ("aten::mm", "cpu_op", 40, 10),
        ("aten::mm", "cpu_op", 80, 15),
    ]
    detail = found(measured(tmp_path, spans))[BETWEEN].detail
    assert detail == (
        "No operator and no collective runs for 75 ms of a step, 30 ms in augment (defined at "
        "data.py:40); 25 ms in main (defined at train.py:8)."
    )


def test_the_line_at_which_the_recording_began_is_not_named(tmp_path: Path) -> None:
    """The line of ``dp.step()``, where the recording began, is not named; its callee is."""
    stood = {"ph": "X", "pid": 1, "tid": 1, "cat": "python_function", "ts": -10, "dur": 200_010,
             "name": "train.py(30): main"}  # fmt: skip
    spans: list[Span] = [("aten::mm", "cpu_op", 0, 10)]
    hashed = "<built-in method update of Hash object at 0x{}>"
    calls = (("<built-in function sleep>", 20, 35), (hashed.format(1), 55, 9),
             (hashed.format(2), 64, 9))  # fmt: skip
    spans += [(name, "python_function", begin, took) for name, begin, took in calls]
    assert found(measured(tmp_path, spans, stood))[BETWEEN].detail == (
        "No operator and no collective runs for 90 ms of a step, 37 ms in main (train.py); "
        "35 ms in sleep, called by main (train.py)."
    )
    spans[1:2] = [("aten::mm", "cpu_op", 20, 35)]
    assert found(measured(tmp_path, spans, stood))[BETWEEN].detail == (
        "No operator and no collective runs for 55 ms of a step, 37 ms in main (train.py); "
        "18 ms in update, called by main (train.py)."
    )
    item: list[Span] = [("aten::mm", "cpu_op", 0, 60)]
    assert found(measured(tmp_path, item, stood))[IN_OPERATOR].detail.endswith(
        "60 ms, all at train.py (main)."
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<built-in function sleep>", "sleep"),
        ("<built-in method append of list object at 0x7f75>", "append"),
        ("<built-in method rank of pybind11_builtins.pybind11_detail_function_record_v1_system_"
         "libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1 object at 0x7f75>", "pybind11 method rank"),
        ("<built-in method  of pybind11_builtins.pybind11 object at 0x7f75>", "pybind11 method"),
        ("json/__init__.py(183): dumps", "dumps (defined at json/__init__.py:183)"),
        ("nn.Module: Linear_0", "nn.Module: Linear_0"),
    ],
)  # fmt: skip
def test_function_names_have_no_address(name: str, shown: str) -> None:
    """Names omit an object's address, and the record that holds a bound function."""
    assert function_of(name) == shown


def test_a_sleeping_thread_is_not_taken_for_the_loader(tmp_path: Path) -> None:
    """A thread that sleeps all the time, such as a watcher, is not what a step waits for.

    No place is named where the steps' thread has no frames.
    """
    frame = {"ph": "X", "pid": 1, "tid": 2, "cat": "python_function", "dur": 79_000}
    beside = [{**frame, "name": "wait", "ts": step * 100_000 + 20_500} for step in range(2)]
    loader = PAIRS["Python or the loader"][1]
    assert found(measured(tmp_path, loader, *beside))[WAITS].detail == (
        "The data loader keeps a step waiting for 79.5 ms."
    )
    spans: list[Span] = [*loader, ("data.py(7): __getitem__", "python_function", 21, 60)]
    assert found(measured(tmp_path, spans, *beside))[WAITS].detail == (
        "The data loader keeps a step waiting for 79.5 ms, 100% of it in data.py:7 (__getitem__)."
    )


def test_the_line_of_a_loader_includes_its_callees(tmp_path: Path) -> None:
    """Built-ins, libraries and operators below a user's function count as its time."""
    spans: list[Span] = [
        *PAIRS["Python or the loader"][1],
        ("torch/utils/data/dataloader.py(7): __next__", "python_function", 20.5, 79),
        ("data.py(7): __getitem__", "python_function", 21, 60),
        ("<built-in method decompress of module>", "python_function", 22, 40),
        ("numpy/random.py(3): shuffle", "python_function", 63, 10),
        ("aten::stack", "cpu_op", 75, 5),
        ("data.py(70): collate", "python_function", 82, 15),
    ]
    assert found(measured(tmp_path, spans))[WAITS].detail == (
        "The data loader keeps a step waiting for 79.5 ms, 76% of it in data.py:7 (__getitem__)."
    )


def test_a_function_costs_its_callees_as_well(tmp_path: Path) -> None:
    """In plain Python, removing a function saves more than its self time."""
    spans: list[Span] = [
        ("transform (train.py:3)", "FEE", 0, 90),
        ("helper (train.py:1)", "FEE", 10, 40),
    ]
    said = found(measured(tmp_path, spans))["transform (train.py:3) takes the most"]
    assert said.saves == "Without it a step would be 90 ms shorter at most."
    assert said.detail == (  # the places are in the names
        "1 of them in a step takes 50 ms itself, 90 ms with what it calls. Next comes helper "
        "(train.py:1), 40 ms."
    )


def test_lines_of_plain_python(tmp_path: Path) -> None:
    """The user's functions that call it are named with its self time, whenever they began."""
    early = {"ph": "X", "pid": 1, "tid": 1, "cat": "FEE", "ts": -10, "dur": 200_010,
             "name": "main (/home/me/job.py:20)"}  # fmt: skip
    spans: list[Span] = [
        ("time.sleep", "FEE", 0, 40),
        ("lookup (/home/me/job.py:6)", "FEE", 40, 50),
        ("retry (/usr/lib/python3.12/site-packages/retry.py:4)", "FEE", 41, 49),
        ("time.sleep", "FEE", 42, 30),
    ]
    assert found(measured(tmp_path, spans, early))["time.sleep takes the most"].detail == (
        "2 of them in a step take 70 ms, 40 ms at job.py:20 (main); 30 ms at job.py:6 (lookup)."
    )
    recursive = "encode (/usr/lib/python3.12/json/encoder.py:3)"
    spans = [(recursive, "FEE", since, took) for since, took in ((0, 90), (1, 30), (40, 40))]
    assert found(measured(tmp_path, spans, early))[f"{recursive} takes the most"].detail == (
        "3 of them in a step take 90 ms, all at job.py:20 (main)."
    )
    spans = [("dataloader", "user_annotation", 0, 90), ("read (/home/me/job.py:9)", "FEE", 5, 80),
             ("time.sleep", "FEE", 6, 78)]  # fmt: skip
    assert found(measured(tmp_path, spans))[WAITS].detail == (
        "The data loader keeps a step waiting for 90 ms, 100% of it in job.py:9 (read)."
    )


def test_waiting_pool_workers_take_no_time_of_a_step(tmp_path: Path) -> None:
    """In plain Python, the wait of a pool's idle workers takes no time of a step."""
    waits: list[dict[str, Any]] = [
        {"ph": "X", "pid": 1, "tid": worker, "name": "_queue.SimpleQueue.get", "cat": "FEE",
         "ts": step * STEP_MS * MS, "dur": STEP_MS * MS}
        for worker in (2, 3, 4) for step in range(2)
    ]  # fmt: skip
    spans: list[Span] = [("crunch (train.py:3)", "FEE", 0, 80), ("lock.acquire", "FEE", 80, 20)]
    said = found(measured(tmp_path, spans, *waits))
    assert list(said) == ["crunch (train.py:3) takes the most"]
    assert said["crunch (train.py:3) takes the most"].share == pytest.approx(0.8)


def of_a_server(path: Path, threads: int, spans: list[Span], with_frames: int = 0) -> MeasuredTrace:
    """Write steps that several threads end in turns, with equal spans; some threads have frames."""
    frame: Span = ("train.py(3): work", "python_function", 0, 90)
    events = [
        {"ph": "X", "pid": 1, "tid": number % threads, "name": f"ProfilerStep#{number}",
         "cat": "user_annotation", "ts": number * STEP_MS * MS, "dur": STEP_MS * MS}
        for number in range(12)
    ] + [
        {"ph": "X", "pid": 1, "tid": number % threads, "name": name, "cat": category,
         "ts": (number * STEP_MS + since) * MS, "dur": took * MS}
        for number in range(12)
        for name, category, since, took in [*spans, *[frame] * (number % threads < with_frames)]
    ]  # fmt: skip
    trace = path / "a.trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    return MeasuredTrace(trace)


@pytest.mark.parametrize("threads", [1, 2, 4, 12])
def test_threads_that_each_end_steps(tmp_path: Path, threads: int) -> None:
    """In plain Python, the steps have the work of all threads, not only of the first."""
    spans: list[Span] = [("time.sleep", "FEE", 0, 80)]
    said = found(of_a_server(tmp_path, threads, spans))["time.sleep takes the most"]
    assert said.detail == "1 of them in a step takes 80 ms."


WAITS_FOR_WORK = [
    [("Queue.get (/usr/lib/python3.12/queue.py:154)", 65), ("_thread.lock.acquire", 64.9)],
    [("_queue.SimpleQueue.get", 65)],
    [("Queue.get (/usr/lib/python3.12/multiprocessing/queues.py:98)", 65), ("posix.read", 64)],
    [("SimpleQueue.get (/usr/lib/python3.12/multiprocessing/queues.py:363)", 65), ("acquire", 64)],
    [("_ConnectionBase.recv (/usr/lib/python3.12/multiprocessing/connection.py:246)", 65)],
    [("socket.accept (/usr/lib/python3.12/socket.py:287)", 65), ("socket._accept", 64.9)],
    [("_socket.socket._accept", 65)],
    [("select.epoll.poll", 65)],
    [("select.poll.poll", 65)],
    [("select.select", 65)],
]


@pytest.mark.parametrize("waits", WAITS_FOR_WORK)
def test_workers_that_wait_for_work(tmp_path: Path, waits: list[tuple[str, float]]) -> None:
    """With several threads, one waits while others work; a single thread delays its own step."""
    idle: list[Span] = [(name, "FEE", 0, took) for name, took in waits]
    spans: list[Span] = [*idle, ("time.sleep", "FEE", 65, 30)]
    assert list(found(of_a_server(tmp_path, 2, spans))) == ["time.sleep takes the most"]
    assert list(found(of_a_server(tmp_path, 2, idle))) == []
    assert list(found(of_a_server(tmp_path, 1, spans))) == [f"{waits[-1][0]} takes the most"]


def test_the_second_largest_part_is_named_next(tmp_path: Path) -> None:
    """In plain Python, a step that waits for another thread may also sleep a little longer."""
    spans: list[Span] = [
        ("write (/home/me/job.py:9)", "FEE", 0, 41), ("time.sleep", "FEE", 0.5, 40),
        ("collect (/home/me/job.py:5)", "FEE", 50, 31), ("_thread.lock.acquire", "FEE", 50, 30),
        ("flush (/home/me/job.py:2)", "FEE", 90, 8),
    ]  # fmt: skip
    assert found(measured(tmp_path, spans))["time.sleep takes the most"].detail == (
        "1 of them in a step takes 40 ms, all at job.py:9 (write). Next comes "
        "_thread.lock.acquire, 30 ms, all at job.py:5 (collect)."
    )


def test_workers_that_wait_for_each_other(tmp_path: Path) -> None:
    """A lock of the workers, or a function with a queue's name, is their work."""
    for name in ("_thread.lock.acquire", "get (/home/me/queue.py:154)"):
        said = found(of_a_server(tmp_path, 2, [(name, "FEE", 0, 80)]))
        assert list(said) == [f"{name} takes the most"]


@pytest.mark.parametrize(
    ("with_frames", "advice"),
    [(0, "with_stack"), (1, "--backend python"), (6, "Take that out of the loop")],
)
def test_threads_without_stacks_get_no_line(tmp_path: Path, with_frames: int, advice: str) -> None:
    """Torch has no stacks of threads that begin in a window, so none are expected."""
    spans: list[Span] = [("aten::mm", "cpu_op", 0, 10)]
    said = found(of_a_server(tmp_path, 6, spans, with_frames))
    assert advice in said["Python between the operators"].advice


def test_a_module_has_no_line_of_its_own(tmp_path: Path) -> None:
    """The trace has the profiler's own line there, which is that of ``dp.step()``."""
    spans: list[Span] = [
        ("train.py(25): <module>", "python_function", 0, 100),
        ("aten::mm", "cpu_op", 40, 10),
        ("aten::mm", "cpu_op", 80, 15),
    ]
    assert found(measured(tmp_path, spans))[BETWEEN].detail == (
        "No operator and no collective runs for 75 ms of a step, all in train.py (<module>)."
    )


def test_a_loader_is_named_and_python_is_not(tmp_path: Path) -> None:
    """The time outside operators has one cause."""
    said = found(measured(tmp_path, PAIRS["Python or the loader"][1]))
    assert list(said) == [WAITS]
    assert said[WAITS].saves == "Without it a step would be 79.5 ms shorter at most."


@pytest.mark.parametrize(
    ("name", "category", "title"),
    [
        ("collection of generation 2", "gc", "Garbage collection"),
        ("compile (dynamo_timed)", "cpu_op", "Recompilation"),
    ],
)
def test_pauses_of_all_threads_or_a_queue(
    tmp_path: Path, name: str, category: str, title: str
) -> None:
    """The device waits if the next kernel was launched after it, and not before."""
    for launched, expected in ((LATE, title), (EARLY, QUEUE)):
        job = Planted(launched=launched)
        job.on_host(name, category, FREE, BUSY - 0.02, OTHER)
        only(job, tmp_path, expected)


def test_communication_exposed_or_hidden(tmp_path: Path) -> None:
    """The same collective costs nothing next to a kernel that computes."""
    job = Planted(launched=EARLY)
    job.kernel("ncclDevKernel_AllReduce", FREE, BUSY - FREE, launched=EARLY, stream=9)
    detail = only(job, tmp_path, EXPOSED)
    assert detail == (
        "Collectives run for 20 ms of a step, all of it while nothing computes. Most comes from "
        "train.py:9 (main), 20 ms."
    )
    job = Planted(launched=EARLY)
    job.kernel("gemm", FREE, BUSY - FREE, launched=EARLY)
    job.kernel("ncclDevKernel_AllReduce", FREE, BUSY - FREE, launched=EARLY, stream=9)
    assert job.found(tmp_path) == {}


def test_a_kernel_that_is_slow_or_one_that_waits_for_a_rank(tmp_path: Path) -> None:
    """A long kernel is named with its origin; a long collective waits for other ranks."""
    spans: list[Span] = [*((f"gemm_{n}", "kernel", n * 3.0, 3.0) for n in range(20))]
    for name, expected in (("slow_gemm", "slow_gemm takes the most"), ("ncclAllReduce", EXPOSED)):
        said = found(measured(tmp_path, [*spans, (name, "kernel", 60, 40)]))
        assert list(said) == [expected]
        assert said[expected].share == pytest.approx(0.4)
        assert said[expected].saves == "Without it a step would be 40 ms shorter at most."
    job = Planted(launched=EARLY)
    assert job.costliest(tmp_path).detail == (
        "1.5 of them in a step take 50 ms. Most comes from train.py:9 (main), 50 ms."
    )


def test_a_copy_pinned_or_pageable(tmp_path: Path) -> None:
    """Each has its own name when it runs alone, and no time is charged to both."""
    for memory, title, other in (("Pinned", COPIES, PINNED), ("Pageable", PINNED, COPIES)):
        job = Planted(launched=EARLY)
        name = f"Memcpy HtoD ({memory} -> Device)"
        job.on_host("aten::copy_", "cpu_op", EARLY - 0.5, EARLY + 0.5)
        job.kernel(name, FREE, BUSY - FREE, launched=EARLY)
        said = job.found(tmp_path)
        assert said[title].share == pytest.approx(0.2, abs=0.001)
        assert other not in said


def test_a_copy_during_a_collective_is_charged_once(tmp_path: Path) -> None:
    """Nothing computes at that time: the collective is charged, whatever memory the copy uses."""
    for memory in ("Pinned", "Pageable"):
        job = Planted(launched=EARLY)
        job.kernel("ncclDevKernel_AllReduce", FREE, BUSY - FREE, launched=EARLY, stream=9)
        job.kernel(f"Memcpy HtoD ({memory} -> Device)", FREE, BUSY - FREE, launched=EARLY)
        only(job, tmp_path, EXPOSED)


def test_a_copy_exposed_or_hidden(tmp_path: Path) -> None:
    """Next to a kernel a copy costs nothing; alone, its origin is named."""
    job = Planted(launched=EARLY)
    job.on_host("aten::clone", "cpu_op", EARLY - 0.5, EARLY + 0.5)
    job.kernel("Memcpy DtoD (Device -> Device)", FREE, BUSY - FREE, launched=EARLY)
    assert only(job, tmp_path, COPIES) == (
        "1 copy runs in a step for 20 ms, 20 ms while the device does nothing else. Most comes "
        "from aten::clone at train.py:9 (main), 20 ms."
    )
    job.kernel("gemm", FREE, BUSY - FREE, launched=EARLY, stream=9)
    assert job.found(tmp_path) == {}


def test_long_in_a_call_to_launch_or_elsewhere(tmp_path: Path) -> None:
    """The host is equally late; a first launch, which loads the kernel, is not the user's work."""
    job = Planted(launched=FREE + 1)
    for event in job.events:
        if event["ts"] % 100_000 == 61_000:
            event["dur"] = 18_990.0
    detail = only(job, tmp_path, HOST)
    assert "does something other than launching, or is long in a launch call (19 ms)" in detail
    assert "A first launch loads the kernel" in detail
    assert "or is long" not in only(Planted(launched=LATE), tmp_path, HOST)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("Optimizer.step#Adam.step", "The optimizer takes long"),
        ("checkpoint", "Checkpoints hold the step up"),
        ("compile (dynamo_timed)", "Recompilation"),
    ],
)
def test_the_line_is_named_with_a_device_and_without(tmp_path: Path, name: str, title: str) -> None:
    """The innermost function of the user's code is named."""
    job = Planted(launched=LATE)
    job.on_host("train.py(31): update", "python_function", FREE - 0.1, BUSY - 0.02)
    job.on_host("torch/optim/adam.py(7): step", "python_function", FREE - 0.05, BUSY - 0.021)
    job.on_host(name, "user_annotation", FREE - 0.04, BUSY - 0.022)
    assert ", all at train.py:31 (update)." in only(job, tmp_path, title)
    spans: list[Span] = [
        ("train.py(31): update", "python_function", 40, 50),
        ("torch/optim/adam.py(7): step", "python_function", 40.1, 49.8),
        (name, "user_annotation", 41, 40),
    ]
    assert ", all at train.py:31 (update)." in found(measured(tmp_path, spans))[title].detail


@pytest.mark.parametrize(
    ("name", "torchs", "title"),
    [
        ("optimizer", "Optimizer.step#Adam.step", "The optimizer takes long"),
        ("checkpoint", "save_checkpoint", "Checkpoints hold the step up"),
    ],
)
def test_nested_labels_of_one_thing_count_once(
    tmp_path: Path, name: str, torchs: str, title: str
) -> None:
    """Two nested labels of one thing: the line takes as long as the finding says."""
    spans: list[Span] = [
        ("train.py(31): update", "python_function", 40, 50),
        (name, "user_annotation", 41, 40),
        (torchs, "user_annotation", 42, 38),
    ]
    detail = found(measured(tmp_path, spans))[title].detail
    assert "40 ms of a step" in detail
    assert detail.endswith(", all at train.py:31 (update).")


@pytest.mark.parametrize("seed", range(8))
def test_lines_share_the_time_that_their_spans_cover(tmp_path: Path, seed: int) -> None:
    """Each moment counts for the first of the open spans, as in a count one by one."""
    draw = random.Random(seed)  # noqa: S311
    labels = [(draw.randrange(90), draw.randrange(1, 60), thread)
              for thread in (1, 2, 3) for _ in range(3)]  # fmt: skip
    labels = [(begin, min(begin + lasts, 95), thread) for begin, lasts, thread in labels]
    events = [
        {"ph": "X", "pid": 1, "tid": thread, "cat": category, "name": name,
         "ts": begin * MS, "dur": (end - begin) * MS}
        for begin, end, thread, category, name in (
            *((*label, "user_annotation", "checkpoint") for label in labels),
            *((0, 99, thread, "python_function", f"t{thread}.py(1): f") for thread in (1, 2, 3)),
        )
    ]  # fmt: skip
    one = measured(tmp_path, [], *events)
    chosen = phase_spans(one.trace, CHECKPOINT)
    plain: Counter[str] = Counter()
    for moment in range(95):
        is_open = [label for label in labels if label[0] <= moment < label[1]]
        if is_open:
            _, _, thread = min(is_open, key=lambda label: (label[0], -label[1]))
            plain[f"t{thread}.py:1 (f)"] += 1
    times = {who.place: who.time for who in openers(one, one.breakdown, chosen)}
    assert {place: time for place, time in times.items() if time} == {
        place: count * MS * 1000 / one.breakdown.count for place, count in plain.items()
    }


def test_the_saving_is_named_once(tmp_path: Path) -> None:
    """The saving is that of a step, or of the trace without marked steps; memory saves no time."""
    job = Planted(launched=LATE)
    (one,) = job.found(tmp_path).values()
    assert one.saves == "Without it a step would be 20 ms shorter at most."
    assert str(one).count("at most") == 1
    assert one.of == "a step"
    job.events = [e for e in job.events if "ProfilerStep" not in e["name"]]
    (one,) = job.found(tmp_path).values()
    assert one.of == "the trace"
    assert one.saves == "Without it the trace would be 40 ms shorter at most."


@pytest.mark.parametrize(
    ("host", "less"),
    [(15, "4.98 ms shorter at most"), (20, "no shorter, as something else lasts as long")],
)
def test_hidden_work_saves_nothing(tmp_path: Path, host: float, less: str) -> None:
    """A collective runs alone for 20 ms, while the host needs as long to launch the next work."""
    job = Planted(launched=FREE + host - 0.02 * (host == 20))
    job.events[-1]["dur"] = job.events[-3]["dur"] = 19_900.0
    job.on_host("cudaDeviceSynchronize", "cuda_runtime", BUSY + 1, STEP - 0.05)
    job.kernel("ncclDevKernel_AllReduce", FREE, BUSY - FREE, launched=EARLY)
    one = job.found(tmp_path)[EXPOSED]
    assert one.share == pytest.approx(0.2)
    assert one.saves == f"Without it a step would be {less}."
