"""Traces with a known critical path, each next to a similar one."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.findings.rules import all_findings
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.report.sections import path_sentence
from tests.unit.analysis.made_jobs import COMPUTE, ENGINE, SIDE, STEP, Job

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.analysis.measures.critical_path import CriticalPath


def parts(path: CriticalPath) -> dict[str, float]:
    """Return the parts of the mean step's path, in us."""
    return {name: time / 1000 for name, time in path.parts().items() if time}


def without(path: CriticalPath) -> dict[str, float]:
    """Return the time of a step if a kind of work cost nothing, in us."""
    return {one.what: one.step / 1000 for one in path.what_ifs}


def test_bound_by_a_kernel(tmp_path: Path) -> None:
    """The host launches two kernels at once and waits: the path has the long one."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 20, 700)
    job.launch("add", 15, 722, 200)
    job.call("cudaDeviceSynchronize", 30, 900)
    path = job.path(tmp_path)
    assert parts(path) == {
        "host": 10 + 70, "launches": 10, "kernels": 900, "between kernels": 2,
        "return to the host": 8,
    }  # fmt: skip
    found = without(path)
    launched = 15 + 10  # without it, the second kernel's launch is the limit
    assert found["gemm"] == launched + 200 + 8 + 70
    assert found["add"] == 1000 - 200
    assert found["all kernels that compute"] == launched + 8 + 70
    assert found["the host's work"] == 1000 - 80


def test_bound_by_the_host(tmp_path: Path) -> None:
    """The device is equally busy, but each launch comes when its time is nearly over."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 20, 700)
    job.host("aten::slow", 20, 700)
    job.launch("add", 730, 740, 200)
    job.call("cudaDeviceSynchronize", 740, 208)
    path = job.path(tmp_path)
    assert parts(path) == {
        "host": 730 + 52, "launches": 10, "kernels": 200, "return to the host": 8
    }  # fmt: skip
    found = without(path)
    assert "gemm" not in found  # the host's work hides it
    assert found["add"] == 1000 - 200
    assert found["the host's work"] == 10 + 700 + 200 + 8  # one kernel after the other


@pytest.mark.parametrize(("call", "left", "unknown"), [(600, 20, 0), (5, 610, 600)])
def test_bound_by_a_slow_call_or_by_a_device(
    tmp_path: Path, call: float, left: float, unknown: float
) -> None:
    """A long call, such as one that loads a kernel, is the host's work; a wait for it is not.

    The other launch takes 10 us, the usual minimum.
    """
    job = Job()
    job.step()
    job.launch("add", 5, 15, 5)
    correlation = job.call("cudaLaunchKernel", 100, call)
    job.work("gemm", correlation, 710, 200)
    job.call("cudaDeviceSynchronize", 720, 198)
    path = job.path(tmp_path)
    assert parts(path).get("unknown wait", 0) == unknown
    assert parts(path)["launches"] == 610 - unknown
    assert without(path)["the host's work"] == left + 200 + 8


def test_bound_by_a_copy(tmp_path: Path) -> None:
    """A copy from pageable memory blocks the host, which launches afterwards."""
    job = Job()
    job.step()
    correlation = job.call("cudaMemcpyAsync", 10, 610)
    job.work("Memcpy HtoD (Pageable -> Device)", correlation, 20, 560)
    job.launch("gemm", 630, 640, 220)
    job.call("cudaDeviceSynchronize", 650, 220)
    path = job.path(tmp_path)
    assert parts(path) == {
        "host": 10 + 10 + 130, "launches": 20, "copies": 560, "kernels": 220,
        "return to the host": 40 + 10,
    }  # fmt: skip
    assert without(path)["all copies"] == 1000 - 560


def test_a_hidden_copy_is_not_on_the_path(tmp_path: Path) -> None:
    """An equally long copy from pinned memory, on its own stream, overlaps the host's work."""
    job = Job()
    job.step()
    correlation = job.call("cudaMemcpyAsync", 10, 5)
    job.work("Memcpy HtoD (Pinned -> Device)", correlation, 20, 560, SIDE)
    job.host("aten::slow", 20, 600)
    job.launch("gemm", 630, 640, 220)
    job.call("cudaDeviceSynchronize", 650, 220)
    path = job.path(tmp_path)
    assert parts(path) == {
        "host": 630 + 130, "launches": 10, "kernels": 220, "return to the host": 10
    }  # fmt: skip
    assert "all copies" not in without(path)


def exchange(*, told: bool, asked: bool) -> Job:
    """Return a job whose last kernel begins at the end of another stream's, waiting or not."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 20, 100)
    job.launch("ncclKernel_AllReduce", 20, 30, 600, SIDE)
    if asked:
        record = job.call("cudaEventRecord", 40, 2)
        wait = job.call("cudaStreamWaitEvent", 45, 2)
        if told:
            job.told("Stream Wait Event", wait, COMPUTE, 46, wait_on_stream=SIDE,
                     wait_on_cuda_event_record_corr_id=record)  # fmt: skip
    job.launch("adam", 50, 633, 300)
    job.call("cudaDeviceSynchronize", 60, 880)
    return job


@pytest.mark.parametrize("told", [True, False])
def test_bound_by_another_stream(tmp_path: Path, told: bool) -> None:
    """A stream that waits by an event waits for the collective, recorded by CUPTI or by calls."""
    path = exchange(told=told, asked=True).path(tmp_path)
    assert parts(path) == {
        "host": 20 + 60, "launches": 10, "communication": 600, "kernels": 300,
        "between kernels": 3, "return to the host": 7,
    }  # fmt: skip
    assert path.waits_recorded is told
    # Without the collective the last kernel follows the first one on its own stream.
    assert without(path)["communication"] == 120 + 300 + 7 + 60


def test_a_delay_without_an_event_stays_unknown(tmp_path: Path) -> None:
    """The times are the same, without an event: the cause is unknown, and not guessed."""
    path = exchange(told=False, asked=False).path(tmp_path)
    found = parts(path)
    assert "communication" not in found
    assert found["unknown wait"] == 633 - 120
    assert found["kernels"] == 400


def test_bound_by_the_backward_pass(tmp_path: Path) -> None:
    """The main thread stops during autograd's backward pass: the path goes through it."""
    job = Job()
    job.step()
    job.host("aten::mm", 10, 190)
    node = "autograd::engine::evaluate_function: MmBackward0"
    job.host(node, 210, 500, thread=ENGINE)
    job.host("aten::mm", 250, 400, thread=ENGINE)
    job.host("aten::add_", 800, 100)
    path = job.path(tmp_path)
    assert parts(path) == {"host": STEP}
    names = path.times.name.tolist()
    trace = MeasuredTrace(tmp_path / "a.trace.json").trace
    by_name: dict[str, float] = {}
    for name, time in zip(names, path.times.time.tolist(), strict=True):
        shown = trace.tables["name"][name] if name >= 0 else ""
        by_name[shown] = by_name.get(shown, 0) + time / 1000
    assert by_name == {"aten::mm": 190 + 400, node: 100, "aten::add_": 100, "": 210}
    assert path.on_host


def test_a_step_that_waits_for_its_device(tmp_path: Path) -> None:
    """Each step ends at its mark."""
    job = Job()
    for number in range(2):
        begin = number * STEP
        job.step(number)
        job.launch("gemm", begin + 10, begin + 20, 900)
        job.call("cudaDeviceSynchronize", begin + 20, 910)
    path = job.path(tmp_path)
    assert (path.lengths / 1000).tolist() == [STEP, STEP]
    assert parts(path) == {
        "host": 80, "launches": 10, "kernels": 900, "return to the host": 10
    }  # fmt: skip


def test_a_device_that_is_behind(tmp_path: Path) -> None:
    """Without a synchronisation a step ends with its device work, which the host does not see."""
    job = Job()
    for number in range(2):
        job.host(f"ProfilerStep#{number}", number * 100, 100, "user_annotation")
        job.launch("gemm", number * 100 + 10, 20 + number * 900, 900)
    path = job.path(tmp_path)
    assert (path.lengths / 1000).tolist() == [920, 900]
    assert parts(path) == {"host": 5, "launches": 5, "kernels": 900}
    assert without(path)["gemm"] == 200 / 2


@pytest.mark.parametrize(("gap", "part"), [(10, "between kernels"), (11, "unknown wait")])
def test_a_gap_that_is_too_long_for_a_stream(tmp_path: Path, gap: float, part: str) -> None:
    """A stream continues at once; a longer gap has another cause."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 20, 400)
    job.launch("add", 20, 420 + gap, 400)
    job.call("cudaDeviceSynchronize", 30, 900)
    assert parts(job.path(tmp_path))[part] == gap


@pytest.mark.parametrize("name", ["aten::to", ""])
def test_a_thread_with_unknown_waits(tmp_path: Path, name: str) -> None:
    """A loader thread's wait before its copy is unknown; its operators are its work."""
    job = Job()
    job.step()
    job.host("aten::mm", 0, 100)
    if name:
        job.host(name, 0, 500, thread=ENGINE)
    copy = job.call("cudaMemcpyAsync", 500, 5, thread=ENGINE)
    job.work("Memcpy HtoD (Pinned -> Device)", copy, 510, 400)
    job.call("cudaDeviceSynchronize", 600, 320)
    found = parts(job.path(tmp_path))
    assert found["copies"] == 400
    assert found.get("unknown wait", 0) == (0 if name else 500)
    assert found["host"] == 80 + (500 if name else 0)


@pytest.mark.parametrize(("number", "length"), [(0, 0), (4 * 10**12, 4e15)])
def test_a_step_without_a_duration_has_no_path(tmp_path: Path, number: int, length: float) -> None:
    """The step has no path, and nothing fails."""
    job = Job()
    job.launch("gemm", 10, 20, 4.5e15)
    job.step(number, length)
    assert job.measured(tmp_path).critical_path is None


def test_an_empty_trace_has_no_path(tmp_path: Path) -> None:
    """There is no event to wait for."""
    trace = tmp_path / "a.trace.json"
    trace.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": []}))
    assert MeasuredTrace(trace).critical_path is None


def test_a_backward_pass_before_the_steps_is_before_the_path(tmp_path: Path) -> None:
    """A pass in autograd's thread before the first mark does not extend the path."""
    job = Job()
    job.step(1)
    job.host("aten::sum", 300, 100)
    job.host("autograd::engine::evaluate_function: SumBackward0", 500, 300, thread=ENGINE)
    job.launch("kernel", 1100, 1200, 300)
    job.call("cudaDeviceSynchronize", 1150, 400)
    path = job.path(tmp_path)
    assert (path.begin, path.lengths.tolist()) == (1_000_000, [1_000_000])
    assert path.parts()["kernels"] == 300_000


def in_flight(job: Job, count: int, begin: float, length: float = 100) -> None:
    """Let the device run work that was launched before the recording."""
    for number in range(count):
        job.work(f"old{number}", 500 + number, begin + number * length, length)


def test_a_window_without_a_step_ends_with_the_device(tmp_path: Path) -> None:
    """The host ends after 90 us, the device after 3 ms; a watchdog's polling is not the job."""
    job = Job()
    job.host("aten::mm", 0, 90)
    for number in range(3):
        job.launch(f"gemm{number}", 10 + 10 * number, 25 + 1000 * number, 1000)
    job.call("cudaEventQuery", 3100, 1, thread=ENGINE)
    path = job.path(tmp_path)
    assert parts(path) == {"host": 10, "launches": 15, "kernels": 3000}
    assert without(path)["gemm1"] == 3025 - 1000
    assert without(path)["all kernels that compute"] == 90


def test_a_host_that_ends_after_the_device(tmp_path: Path) -> None:
    """The same without a wait for the device: the path is the host's."""
    job = Job()
    job.host("aten::mm", 0, 5000)
    job.launch("gemm", 10, 25, 1000)
    assert parts(job.path(tmp_path)) == {"host": 5000}


@pytest.mark.parametrize("seed", range(4))
def test_without_host_work_after_the_launches_the_path_is_on_the_device(
    tmp_path: Path, seed: int
) -> None:
    """Kernels of random lengths, all launched while the first one runs, on two streams."""
    chance = random.Random(seed)  # noqa: S311 - nothing is secret here
    job, busy, alone = Job(), 0, 0
    job.host("aten::mm", 0, 500)
    for number in range(20):
        length = chance.randint(600 if not number else 1, 900)
        job.launch(f"gemm{number}", 20 + 10 * number, 30 + busy, length)
        busy += length
    alone = chance.randint(1, 400)
    job.launch("copy", 220, 230, alone, SIDE)
    path = job.path(tmp_path)
    assert parts(path) == {"host": 20, "launches": 10, "kernels": busy}
    longest = {name: time for name, time in without(path).items() if name.startswith("gemm")}
    assert min(longest.values()) >= max(500, 230 + alone)


def test_work_in_flight_is_what_the_host_waits_for(tmp_path: Path) -> None:
    """Its launch is not in the trace: the call waited for it, and did not return late."""
    job = Job()
    job.step()
    in_flight(job, 6, begin=-50)
    job.call("cudaDeviceSynchronize", 10, 545)
    job.launch("gemm", 600, 610, 300)
    job.call("cudaDeviceSynchronize", 620, 295)
    path = job.path(tmp_path)
    assert parts(path) == {
        "host": 45 + 85, "launches": 10, "earlier work": 550, "kernels": 300,
        "return to the host": 5 + 5,
    }  # fmt: skip
    # Without waits the host launches after 55 us, and the kernel comes right after the others.
    assert without(path)["the host's waits for the device"] == 550 + 300
    # Without kernels the host still waits for the others, and comes to its next wait.
    assert without(path)["all kernels that compute"] == 620 + 85


def test_work_in_flight_is_what_a_kernel_queued_behind(tmp_path: Path) -> None:
    """The device is behind: the step takes its own kernel, but at least as long as the host."""
    job = Job()
    job.step(length=60)
    in_flight(job, 10, begin=-50)
    job.launch("gemm", 10, 955, 150)
    path = job.path(tmp_path)
    assert parts(path) == {"kernels": 150, "between kernels": 5}
    assert without(path)["gemm"] == 60
    assert without(path)["delays of the device"] == 150
    assert path.lengths.tolist() == [155_000]


def test_work_in_flight_that_nothing_waits_for_is_not_of_the_steps(tmp_path: Path) -> None:
    """It runs on a stream of its own, until long after the step's own work."""
    job = Job()
    job.step()
    job.work("old", 500, 0, 9000, SIDE)
    job.launch("gemm", 10, 20, 300)
    job.call("cudaStreamSynchronize", 30, 295)
    path = job.path(tmp_path)
    assert path.lengths.tolist() == [STEP * 1000]
    assert parts(path)["kernels"] == 300


def test_a_first_kernel_behind_work_that_is_not_in_the_trace(tmp_path: Path) -> None:
    """As of devices that record nothing launched before; an idle device begins at once."""
    found = {}
    for begin in (115, 816):
        job = Job()
        job.step()
        job.launch("gemm", 100, begin, 80)
        job.call("cudaDeviceSynchronize", 110, begin - 20)
        found[begin] = parts(job.path(tmp_path))
    assert found[115] == {
        "host": 100 + 795,
        "launches": 15,
        "kernels": 80,
        "return to the host": 10,
    }
    assert found[816] == {
        "host": 94, "kernels": 80, "return to the host": 10, "earlier work": 816,
    }  # fmt: skip


def test_a_kernel_that_begins_before_the_one_ahead_has_ended(tmp_path: Path) -> None:
    """As with programmatic dependent launch: it depends on that one, not on its launch."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 20, 400)
    job.launch("add", 20, 418, 202)
    job.call("cudaDeviceSynchronize", 30, 600)
    path = job.path(tmp_path)
    assert parts(path) == {
        "host": 10 + 370, "launches": 10, "kernels": 600, "return to the host": 10,
    }  # fmt: skip


def test_a_finding_saves_what_its_row_of_the_path_saves(tmp_path: Path) -> None:
    """A synchronisation leaves the device idle, but another thread launches no earlier for it."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 20, 100)
    job.call("cudaDeviceSynchronize", 30, 200)
    job.host("aten::index", 400, 520, thread=ENGINE)
    job.launch("add", 910, 920, 70, thread=ENGINE)
    measured = job.measured(tmp_path)
    path = measured.critical_path
    assert path is not None
    assert without(path)["the host's waits for the device"] == 990
    found = all_findings(measured, least=0)
    (one,) = [f for f in found if f.title == "The host waits for the device"]
    assert one.share * STEP > 100
    assert one.saves == "Without it a step would be 0.01 ms shorter at most."


def test_a_thread_that_nothing_explains_is_no_work_of_the_host(tmp_path: Path) -> None:
    """A server's thread launches after 940 us, of which it was in an operator for 40.

    The rest costs as much if the host's work cost nothing, and bounds no saving.
    """
    job = Job()
    job.host("aten::zeros", 0, 5)
    job.host("aten::index", 900, 40, thread=ENGINE)
    job.launch("gemm", 940, 950, 50, thread=ENGINE)
    measured = job.measured(tmp_path)
    path = measured.critical_path
    assert path is not None
    assert parts(path) == {"host": 40, "launches": 10, "kernels": 50, "unknown wait": 900}
    assert without(path)["the host's work"] == 1000 - 40
    assert path.is_unknown
    assert path_sentence(measured) == [
        "What the trace waits for is unknown: for 90% of its critical path the trace does not tell "
        "which thread or stream waits for which."
    ]


@pytest.mark.parametrize("linked", [True, False])
def test_the_path_is_unknown_where_no_launch_leads_to_a_stream(
    tmp_path: Path, linked: bool
) -> None:
    """An NPU's collectives have no launch: the host may wait for them, and the path cannot tell."""
    job = Job()
    job.step()
    job.launch("gemm", 100, 110, 200)
    if linked:
        job.launch("hcom_allReduce", 120, 400, 550, SIDE)
    else:
        job.work("hcom_allReduce", -1, 400, 550, SIDE)
    measured = job.measured(tmp_path)
    path = measured.critical_path
    assert path is not None
    assert path.is_unknown is not linked
    said, found = path_sentence(measured), {one.title for one in all_findings(measured)}
    exposed = "Communication is exposed"
    assert (exposed in found) is not linked  # without a launch nothing tells that it is hidden
    assert linked or said == [
        "What the step waits for is unknown: the trace does not tell what launches the work of "
        "some streams (0.55 ms), or what waits for it."
    ]
