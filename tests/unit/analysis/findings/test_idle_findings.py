"""A device that is idle for a fifth of each step: similar traces have different causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.findings import host, idle
from dynprof.analysis.findings.rules import all_findings
from dynprof.analysis.measures.idle import FIRST_USE, NOTHING, PAGEABLE
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.breakdown import IDLE, RECORDING
from tests.real_traces import on_each
from tests.unit.analysis.findings.planted import (
    BUSY,
    EARLY,
    FREE,
    HOST,
    LATE,
    MAIN,
    OTHER,
    QUEUE,
    Planted,
    only,
)
from tests.unit.analysis.made_jobs import Job

if TYPE_CHECKING:
    from pathlib import Path

WAITS = "The host waits for the device"
UNKNOWN = "The device is idle, and the trace cannot tell why"
SLOW_LAUNCHES = "The host cannot launch fast enough"
PINNED = "Copies from memory that is not pinned"


def test_late_or_queued(tmp_path: Path) -> None:
    """The next kernel was launched after the gap began, or long before."""
    late = only(Planted(launched=LATE), tmp_path, HOST)
    assert "20 ms at train.py:9 (main)" in late
    queued = only(Planted(launched=EARLY), tmp_path, QUEUE)
    assert "All of it was launched before the device was free" in queued


def test_a_part_of_the_idle_time_is_named_as_a_part(tmp_path: Path) -> None:
    """Time outside operators, code and phases is named as a part, not as the rest."""
    job = Planted(launched=LATE)
    job.on_host("aten::add", "cpu_op", FREE, 70)
    job.on_host("forward", "user_annotation", FREE, 75)
    said = only(job, tmp_path, HOST)
    assert "15 ms in forward; 5 ms outside of phases" in said
    job.events = [one for one in job.events if one["cat"] != "python_function"]
    assert "10 ms in aten::add; 9.99 ms outside of operators" in only(job, tmp_path, HOST)
    job.on_host("train.py(22): evaluate", "python_function", FREE, 70)
    said = only(job, tmp_path, HOST)
    assert "10 ms at train.py:22 (evaluate); 9.99 ms outside of your own code" in said


def test_collectives_of_the_host_can_cause_idle_time(tmp_path: Path) -> None:
    """A thread may wait for gloo's collectives without an event; short collectives do not count."""
    job = Planted(launched=LATE)
    job.on_host("gloo:all_reduce", "user_annotation", FREE - 5, 75, OTHER)
    assert "During 15 ms of it collectives run on the host" in only(job, tmp_path, HOST)
    job = Planted(launched=LATE)
    job.on_host("gloo:all_reduce", "user_annotation", FREE, FREE + 1, OTHER)
    assert "collectives" not in only(job, tmp_path, HOST)


def test_allocating_pinned_memory_is_a_cause(tmp_path: Path) -> None:
    """Allocation and release of pinned memory delay the host as those of a device do."""
    job = Planted(launched=LATE)
    job.on_host("cudaFreeHost", "cuda_runtime", FREE, BUSY - 0.02)
    said = only(job, tmp_path, "Memory is taken from the driver in the loop")
    assert "Calls to allocate or free device or pinned memory" in said


def test_a_finding_without_a_rest_mentions_none(tmp_path: Path) -> None:
    """If the shown times are equal, no rest is mentioned."""
    job = Planted(launched=EARLY)
    job.kernel("late", FREE + 0.005, 0.01, launched=FREE - 0.007)
    assert "All of it was launched before the device was free" in only(job, tmp_path, QUEUE)


def test_the_cause_of_a_queue_is_that_of_most_of_its_time(tmp_path: Path) -> None:
    """Many short gaps between a device's kernels do not explain the few long ones."""
    job = Planted(launched=EARLY)
    for number in range(40):
        job.kernel("short", FREE + number / 100, 0.008, launched=EARLY - 1)
    found = job.found(tmp_path)[QUEUE]
    assert "half of the time in gaps of 19,602.0 us or more" in found.detail
    assert "another process on the device" in found.advice


def test_memory_for_the_recording_is_not_the_jobs(tmp_path: Path) -> None:
    """The launching thread stops while CUPTI allocates, unless it makes calls."""
    for call, left in ((FREE - 1, 0.1), (FREE + 5, 0.2)):
        job = Planted(launched=LATE)
        job.on_host("Activity Buffer Request", "overhead", FREE, FREE + 10, OTHER)
        job.on_host("cudaEventQuery", "cuda_runtime", call, call + 0.01)
        only(job, tmp_path, HOST, share=left)


def test_generated_code_of_torch_compile_is_not_the_users(tmp_path: Path) -> None:
    """The named line is the one that calls the compiled code."""
    job = Planted(launched=LATE)
    job.on_host("train.py(22): evaluate", "python_function", 59, 79.9)
    written = f"/cache/v7/cv7y5a4{'n' * 45}.py(148): call"
    job.on_host(written, "python_function", FREE, 78)
    assert "19.9 ms at train.py:22 (evaluate)" in only(job, tmp_path, HOST)


def test_without_a_launch_there_is_no_cause(tmp_path: Path) -> None:
    """Without a recorded launch there is no cause, whatever the host did."""
    job = Planted(launched=None)
    job.on_host("dataloader", "user_annotation", FREE, BUSY)
    assert "20 ms while the host is at: data loading" in only(job, tmp_path, UNKNOWN)


def test_a_synchronisation_or_work_after_it(tmp_path: Path) -> None:
    """A gap after a call that waited is charged to the call up to the duration of its wait."""
    long = Planted(launched=LATE)
    long.on_host("train.py(22): evaluate", "python_function", 31, 62)
    long.on_host("aten::item", "cpu_op", 32, 60.5)
    long.on_host("aten::_local_scalar_dense", "cpu_op", 32.5, 60.3)
    long.on_host("cudaStreamSynchronize", "cuda_runtime", 33, 60.01)
    assert "1 x .item() at train.py:22 (evaluate), 20 ms" in only(long, tmp_path, WAITS)
    short = Planted(launched=LATE)
    short.on_host("aten::item", "cpu_op", 59, 60.01)
    short.on_host("cudaStreamSynchronize", "cuda_runtime", 59, 60.01)
    short.on_host("data.py(40): augment", "python_function", 60.02, 79)
    short.on_host("numpy/random.py(3): shuffle", "python_function", 61, 78)
    assert "at data.py:40 (augment)" in only(short, tmp_path, HOST, share=0.19)


def test_a_pageable_copy_or_a_synchronisation(tmp_path: Path) -> None:
    """Both delay the host until the device is done; a copy of a few bytes does so too."""
    for name, title, share in (
        ("Memcpy DtoH (Device -> Pageable)", PINNED, 0.3),  # the call takes 30 ms
        ("Memcpy DtoH (Device -> Pinned)", HOST, 0.2),
    ):
        job = Planted(launched=LATE)
        job.on_host("aten::to", "cpu_op", 29, 60.5)
        job.kernel(name, FREE, 0.002, launched=EARLY, call="cudaMemcpyAsync")
        assert "20 ms" in only(job, tmp_path, title, share)
    job = Planted(launched=LATE)
    job.kernel("Memcpy DtoH (Device -> Pinned)", FREE, 0.002, launched=EARLY, call="cudaMemcpy")
    assert "1 x cudaMemcpy at train.py:9 (main)" in only(job, tmp_path, WAITS)


def test_small_kernels_launched_late_or_early(tmp_path: Path) -> None:
    """The same 400 short kernels: the host is slower than the device, or ahead of it."""
    for ahead, title, share in ((0.012, SLOW_LAUNCHES, 0.16), (50.0, QUEUE, 0.168)):
        job = Planted(launched=EARLY - 1)
        for number in range(400):
            at = FREE + number * 0.05
            job.kernel(f"add_{number}", at, 0.008, launched=at - ahead)
        found = job.found(tmp_path)
        assert title in found
        assert found[title].share == pytest.approx(share, abs=0.005)
    said = Planted(launched=EARLY - 1)
    for number in range(400):
        said.kernel("add", FREE + number * 0.05, 0.008, launched=FREE + number * 0.05 - 0.012)
    detail = said.found(tmp_path)[SLOW_LAUNCHES].detail
    assert "From launch to launch the host takes 60.0 us" in detail
    assert "the work before the gap takes 8.0 us" in detail


RULES = (
    host.data_loading, host.garbage, host.compiling, host.optimizer, host.checkpoint,
    *(rule for rule in idle.IDLE_RULES if rule is not idle.pageable_copies),
)  # fmt: skip
"""All rules that charge only idle time; the rule of copies also charges their run time."""


@on_each
def test_findings_charge_all_idle_time_once(path: Path) -> None:
    """Charged time, recording overhead and time without work add up to all idle time."""
    measured = MeasuredTrace(path)
    steps = measured.breakdown
    if measured.idle is None:
        return
    found = [finding for rule in RULES if (finding := rule(measured, steps))]
    causes = measured.idle.by_cause()
    left = (causes[PAGEABLE] + causes[NOTHING] + causes[RECORDING]) / steps.count / steps.length
    charged = sum(finding.share for finding in found)
    assert charged + left == pytest.approx(steps.share(steps.parts[IDLE]), abs=1e-9)


CAUSES = {
    "The step waits for data": ("dataloader", "user_annotation"),
    "Checkpoints hold the step up": ("## checkpoint ##", "user_annotation"),
    "The optimizer takes long": ("Optimizer.step#Adam.step", "user_annotation"),
    "Memory is taken from the driver in the loop": ("cudaMalloc", "cuda_runtime"),
    "The host waits for the device": ("cudaDeviceSynchronize", "cuda_runtime"),
}


@pytest.mark.parametrize("title", CAUSES)
def test_on_the_launching_thread_or_on_another(tmp_path: Path, title: str) -> None:
    """Only work of the thread that launches next delays the device."""
    name, category = CAUSES[title]
    for thread, expected in ((MAIN, title), (OTHER, HOST)):
        job = Planted(launched=LATE)
        job.on_host(name, category, FREE, BUSY - 0.02, thread)
        only(job, tmp_path, expected)


@pytest.mark.parametrize("title", CAUSES)
def test_nothing_the_host_does_explains_a_queue(tmp_path: Path, title: str) -> None:
    """The next work was launched before, so the host is not the cause."""
    job = Planted(launched=EARLY)
    job.on_host(*CAUSES[title], FREE, BUSY - 0.02)
    only(job, tmp_path, QUEUE)


def test_pauses_of_all_threads_delay_the_device(tmp_path: Path) -> None:
    """Garbage collections and compilations delay the host on any thread."""
    for name, category, title in (
        ("collection of generation 2", "gc", "Garbage collection"),
        ("compile (dynamo_timed)", "cpu_op", "Recompilation"),
    ):
        job = Planted(launched=LATE)
        job.on_host(name, category, FREE, BUSY - 0.02, OTHER)
        only(job, tmp_path, title)


def test_causes_before_symptoms(tmp_path: Path) -> None:
    """A checkpoint copies and synchronises: only the checkpoint is charged, once."""
    job = Planted(launched=LATE)
    job.on_host("checkpoint", "user_annotation", FREE, BUSY - 0.02)
    job.on_host("cudaStreamSynchronize", "cuda_runtime", 62, 70)
    job.on_host("cudaFree", "cuda_runtime", 71, 75)
    only(job, tmp_path, "Checkpoints hold the step up")


FIRST = "First use of the device or a library"


def test_the_first_use_of_a_library_is_no_work_of_the_loop(tmp_path: Path) -> None:
    """Two long cudaFree in the first linear layer create a context and load cuBLAS, once."""
    job = Planted(launched=LATE)
    job.on_host("aten::linear", "cpu_op", 1, 2)
    job.on_host("cudaFree", "cuda_runtime", FREE + 1, FREE + 2)
    assert FIRST not in job.found(tmp_path)
    first = {"ph": "X", "pid": 5, "tid": MAIN}
    for name, category, at, took in (
        ("aten::conv2d", "cpu_op", FREE, 19.0),
        ("cudaFree", "cuda_runtime", FREE + 0.1, 12.0), ("cudaFree", "cuda_runtime", 72.5, 5.0),
    ):  # fmt: skip
        times = {"ts": at * 1000, "dur": took * 1000, "args": {"correlation": 0}}
        job.events.append({**first, "name": name, "cat": category, **times})
    found = job.found(tmp_path)[FIRST]
    assert found.share == pytest.approx(0.095)  # all of the operator, which is mostly such a call
    assert "1 x cudaFree, 12 ms" in found.detail
    assert "record later steps" in found.advice


def test_the_first_use_counts_before_the_first_kernel(tmp_path: Path) -> None:
    """Also if no step is marked, so that the device has nothing to do until then."""
    job = Planted(launched=None)
    begin = {"ph": "X", "pid": 5, "tid": MAIN, "cat": "cuda_runtime", "name": "cudaFree"}
    job.events = [e for e in job.events if not e["name"].startswith("ProfilerStep")]
    job.events.append({**begin, "ts": -800_000, "dur": 700_000, "args": {"correlation": 0}})
    found = job.found(tmp_path)[FIRST]
    assert found.share == pytest.approx(0.7, abs=0.01)
    measured = MeasuredTrace(tmp_path / "a.trace.json")
    assert measured.idle is not None
    assert measured.idle.by_cause()[FIRST_USE] == 700_000_000
    assert measured.idle.by_cause()[NOTHING] == 100_000_000 - 20_000


def test_nothing_delays_a_launch_after_the_last_one(tmp_path: Path) -> None:
    """The last step's label ends long after the host and the device; an operator there counts."""
    for operator, share in ((False, 0), (True, 0.3)):
        job = Job()
        job.step()
        job.launch("gemm", 0, 5, 295)
        if operator:
            job.host("aten::item", 500, 300)
        measured = job.measured(tmp_path)
        assert measured.idle is not None
        assert measured.idle.by_cause()[NOTHING] == 700_000 - share * 1e6
        found = {one.title: one.share for one in all_findings(measured, least=0)}
        assert found.get(HOST, 0) == pytest.approx(share, abs=0.006)  # and the launch


def test_the_step_itself_is_not_taken_out_of_the_loop(tmp_path: Path) -> None:
    """A line in which most operators run is that of the loop or of the whole forward pass."""
    job = Planted(launched=LATE)
    job.on_host("model.py(88): forward", "python_function", 1, 99)
    job.on_host("aten::mm", "cpu_op", 2, 3)
    said = job.found(tmp_path)[HOST]
    assert "at model.py:88 (forward)" in said.detail
    assert "out of the loop" not in said.advice
    job.on_host("log.py(7): write", "python_function", FREE - 1, LATE - 0.01)
    said = job.found(tmp_path)[HOST]
    assert "at log.py:7 (write)" in said.detail
    assert "out of the loop" in said.advice


def test_advice_on_launches_that_are_not_in_the_trace(tmp_path: Path) -> None:
    """It never says to record what is there: the calls, or the host."""
    lost, job = Planted(launched=None), Planted(launched=None)
    assert "a short window loses fewer" in lost.found(tmp_path)[UNKNOWN].advice
    job.events = [e for e in job.events if e["cat"] != "cuda_runtime"]
    job.on_host("aten::mm", "cpu_op", 1, 2)
    assert "no calls that launch work" in job.found(tmp_path)[UNKNOWN].advice
    job.events = [e for e in job.events if e["cat"] == "kernel"]
    assert "add CPU to the device's" in job.found(tmp_path)[UNKNOWN].advice
