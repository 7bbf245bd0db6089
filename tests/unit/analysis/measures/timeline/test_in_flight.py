"""A device that runs work from before the recording is not idle, and waits for no host."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis import load
from dynprof.analysis.findings.rules import all_findings
from dynprof.analysis.measures.difference import MeanStep
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.vendor_files.communication import communication
from tests.real_traces import REAL, everything, on_opened
from tests.unit.analysis.made_jobs import COMPUTE, SIDE, STEP, Job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDER = ("gemm", "nccl_own", "Memcpy HtoD", "earlier work")
"""What a microsecond counts as, if several of these run."""
TICK = 100
"""Resolution of a count over raw events, in ns."""


def opening(path: Path, *, begin: float, called: float = 10) -> MeasuredTrace:
    """Return a step whose first kernel begins at a time, and ends the step; times in us."""
    job = Job()
    job.step()
    job.launch("gemm", called, begin, STEP - begin)
    return job.measured(path)


def idle(measured: MeasuredTrace) -> dict[str, float]:
    """Return the idle time of the device by cause, in us."""
    assert measured.idle is not None
    return {cause: time / 1000 for cause, time in measured.idle.by_cause().items() if time}


def test_gaps_of_work_in_flight_are_the_queue(tmp_path: Path) -> None:
    """Its launches are not in the trace, but were before the recording: no host is late."""
    job = Job()
    job.step()
    for number in range(3):
        job.work("old", 500 + number, 200 + 210 * number, 200)
    job.launch("gemm", 600, 830, 170)
    measured = job.measured(tmp_path)
    assert idle(measured) == {"waiting in the queue": 10 + 10 + 10}
    # Before the first of them, a kernel ran that had begun before the recording.
    assert measured.breakdown.parts["earlier work"] == 200_000 + 3 * 200_000
    assert str(measured.breakdown).endswith(
        "computes for 17% of it, 80% is work from before the recording, and it is idle for 3%."
    )
    assert "cannot tell why" not in " ".join(map(str, all_findings(measured)))


def test_a_kernel_without_a_launch_after_one_with_a_launch_is_unknown(tmp_path: Path) -> None:
    """A call is missing within the recording; so it is where no call was recorded at all."""
    job = Job()
    job.step()
    job.launch("gemm", 0, 10, 190)
    job.work("lost", 500, 700, 300)
    assert idle(job.measured(tmp_path))["unknown"] == 500
    job = Job()
    job.step()
    job.work("lost", 500, 700, 300)
    assert idle(job.measured(tmp_path)) == {"unknown": 700}


def test_a_first_kernel_that_begins_late_ran_behind_other_work(tmp_path: Path) -> None:
    """The device records nothing that was launched before; no finding calls the time idle."""
    measured = opening(tmp_path, begin=600)
    assert idle(measured) == {}
    assert measured.breakdown.parts["earlier work"] == 600_000
    assert str(measured.breakdown).endswith(
        "computes for 40% of it, 60% is work from before the recording, and it is idle for 0%."
    )
    assert not [one for one in all_findings(measured) if "idle" in str(one)]


def test_a_first_kernel_that_begins_at_once_waited_for_its_launch(tmp_path: Path) -> None:
    """The host was late, and the device was idle."""
    measured = opening(tmp_path, begin=600, called=590)
    assert sum(idle(measured).values()) == 600
    assert "earlier work" not in measured.breakdown.parts


def test_a_first_kernel_of_a_stream_that_waits_for_another_stream(tmp_path: Path) -> None:
    """It begins late because of recorded work: the device was not idle before it."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 20, 600)
    job.launch("ncclKernel_AllReduce", 30, 625, 375, SIDE)
    measured = job.measured(tmp_path)
    assert "earlier work" not in measured.breakdown.parts
    assert idle(measured)["waiting in the queue"] == 5


def test_a_first_kernel_that_begins_as_late_as_others_waited_in_the_queue(tmp_path: Path) -> None:
    """Each launch takes as long on this device: no earlier work is needed to explain the first."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 215, 100)
    job.launch("gemm", 400, 605, 100)
    measured = job.measured(tmp_path)
    assert "earlier work" not in measured.breakdown.parts
    assert idle(measured)["starting"] == 200 + 200
    job = Job()
    job.step()
    job.launch("gemm", 10, 216, 100)
    job.launch("gemm", 400, 605, 100)
    assert job.measured(tmp_path).breakdown.parts["earlier work"] == 216_000


def test_a_first_kernel_behind_one_that_was_lost(tmp_path: Path) -> None:
    """A launch within the recording has no kernel, so that one may have run, not earlier work."""
    job = Job()
    job.step()
    job.call("cudaLaunchKernel", 2, 5)
    job.launch("gemm", 10, 600, 400)
    measured = job.measured(tmp_path)
    assert "earlier work" not in measured.breakdown.parts
    assert idle(measured)["starting"] == 600 - 15


def test_work_from_before_the_recording_belongs_to_no_step(tmp_path: Path) -> None:
    """The device finishes it for 3 ms; then the three steps run on it for 1.9 ms each."""
    job = Job()
    for number in range(6):
        job.work("old", 500 + number, 500 * number, 500)
    for number in range(3):
        job.step(number)
        job.launch("gemm", number * STEP + 100, 3000 + number * 1900, 1900)
    measured = job.measured(tmp_path)
    assert measured.breakdown.sentences()[:3] == [
        "A step takes 1.9 ms on the device (3 steps); the host finishes a step in 1 ms and is far "
        "ahead.",
        "The device computes for 100% of it, and it is idle for 0%.",
        "Work from before the recording, 3 ms on the device, counts in no step.",
    ]
    assert [step.computing for step in measured.steps] == [1_900_000] * 3
    found = load(measured.path)
    rows = found.query("SELECT step, count(*) FROM kernels GROUP BY step ORDER BY step").rows()
    assert list(rows) == [(0, 1), (1, 1), (2, 1), (None, 6)]
    # The label on the host, the step as report and diff count it, and its span on the device.
    rows = found.query("SELECT duration_ns, took_ns, stage_ns, preparing_ns FROM steps").rows()
    assert list(rows) == [
        (1_000_000, 1_900_000, 1_900_000, 3_000_000 + 900_000 * number) for number in range(3)
    ]
    assert MeanStep.of(measured).lengths == (1_900_000,) * 3


@pytest.mark.parametrize("seed", range(8))
def test_work_from_before_the_recording_is_a_share_of_its_own(tmp_path: Path, seed: int) -> None:
    """Each microsecond of the step is counted by a loop; what the step launched comes first."""
    dice, job, doing = random.Random(seed), Job(), dict[int, str]()  # noqa: S311
    job.step()
    ended = {COMPUTE: 0, SIDE: 0}
    for number in range(dice.randint(1, 9)):
        stream, took = dice.choice([*ended]), dice.randint(1, 60)
        begin = ended[stream] + dice.randint(0, 20)
        job.work(dice.choice(["old", "nccl_old"]), 500 + number, begin, took, stream)
        doing |= dict.fromkeys(range(begin, begin + took), "earlier work")
        ended[stream] = begin + took
    doing |= dict.fromkeys(range(min(doing)), "earlier work")  # it began before the recording
    for name in dice.choices(["gemm", "nccl_own", "Memcpy HtoD"], k=6):
        stream, took = dice.choice([*ended]), dice.randint(1, 60)
        begin = ended[stream] + dice.randint(0, 20)
        job.launch(name, 0, begin, took, stream)
        for at in range(begin, begin + took):
            doing[at] = min(doing.get(at, name), name, key=ORDER.index)
        ended[stream] = begin + took
    found = job.measured(tmp_path).breakdown.parts
    counts = Counter(doing[at] for at in doing if at < STEP)
    named = {"gemm": "computing", "nccl_own": "communication", "Memcpy HtoD": "copying"}
    assert found == {
        **{part: 1000 * counts[name] for name, part in named.items()},
        "earlier work": 1000 * counts["earlier work"],
        "idle": 1000 * (STEP - counts.total()),
    }


def test_findings_are_about_what_the_step_launched(tmp_path: Path) -> None:
    """The step launches four additions and two copies; 40 and 20 are from before the recording."""
    job, at = Job(), 0.0
    job.step()
    for number in range(60):
        job.work(("Memcpy HtoD", "add_elementwise", "mul_elementwise")[number % 3], 500, at, 5)
        at += 6
    for name in ("add_elementwise", "mul_elementwise") * 2 + ("Memcpy HtoD",) * 2:
        job.launch(name, 0, at, 80)
        at += 80
    job.call("cudaDeviceSynchronize", 10, at - 10)
    text = " ".join(map(str, all_findings(job.measured(tmp_path))))
    assert "2 copies run in a step for 0.16 ms, 0.16 ms while the device does nothing else" in text
    assert "4 elementwise kernels of a step directly follow one another, for 0.16 ms" in text
    path = job.path(tmp_path).parts()
    assert (path["kernels"], path["copies"]) == (320_000, 160_000)
    assert path["earlier work"] >= 60 * 5000


def test_a_wait_for_work_from_before_the_recording_makes_no_outlier(tmp_path: Path) -> None:
    """The first of four steps waits 700 us for it, and works as long as the others."""
    job = Job()
    for number in range(4):
        begin, earlier = number * STEP, 700 if number == 0 else 0
        job.step(number, 200 + earlier)
        job.launch("gemm", begin + 10, begin + earlier + 20, 170)
        job.call("cudaDeviceSynchronize", begin + 20, earlier + 175)
    for number in range(7):
        job.work("old", 500 + number, 100 * number, 100)
    job.events.sort(key=lambda event: float(event["ts"]))
    measured = job.measured(tmp_path)
    assert measured.outliers == []
    assert [measured.worked(step) for step in measured.marked] == [220_000] + [200_000] * 3
    assert str(measured.breakdown).startswith(
        "A step takes 0.2 ms (median of 4 steps, from 0.2 ms to 0.9 ms; shares are of the mean, "
        "0.375 ms)."
    )


@on_opened
def test_real_work_from_before_the_recording_is_earlier_work(path: Path) -> None:
    """The time in which only work without a call runs, from the raw events of the trace."""
    events = everything(path)
    calls = {e["args"].get("correlation") for e in events if e["kind"].startswith("cuda_")}
    work = [e for e in events if e["kind"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    marks = [e for e in events if e["name"].startswith("ProfilerStep#") and e["kind"] != "cpu_op"]
    old = [e for e in work if e["args"]["correlation"] not in calls]
    if not (old and marks):
        pytest.skip("no work without a call in a marked step")
    measured = MeasuredTrace(path)
    (step,) = {(e["begin"], e["end"]) for e in marks if e["kind"] == "user_annotation"}
    alone = set(ticks(old, step)) - set(ticks([e for e in work if e not in old], step))
    found = measured.breakdown.parts["earlier work"]
    assert found == pytest.approx(len(alone) * TICK, rel=0.001)


def ticks(work: list[dict[str, Any]], within: tuple[int, int]) -> Iterator[int]:
    """Yield the ticks of time in which some work runs, within a span."""
    for one in work:
        begin, end = max(one["begin"], within[0]), min(one["end"], within[1])
        yield from range(begin // TICK, end // TICK)


def test_collectives_belong_to_the_step_that_launched_them(tmp_path: Path) -> None:
    """One is from before the recording, and the others run when the host is steps ahead."""
    job = Job()
    job.work("ncclKernel_AllReduce", 500, 0, 2500)
    for number in range(2):
        job.step(number)
        job.launch("ncclKernel_AllReduce", number * STEP + 100, 2500 + number * 900, 900)
    measured = job.measured(tmp_path)
    found = {step: len(kinds["collective"]) for step, kinds in communication(measured).items()}
    total = 1  # the sum of the kind has a row, too
    assert found == {"step": 1 + total, "step0": 1 + total, "step1": 1 + total}


def test_real_steps_have_what_was_launched_in_them() -> None:
    """The device of this trace is 30 ms behind; counted by correlation over the raw events."""
    path = REAL / "resnet_act_checkpoint_mi300.json.gz"
    if not path.exists():
        pytest.skip("there is no folder of real GPU traces")
    events, lasts = everything(path), []
    calls = {e["args"]["correlation"]: e["begin"] for e in events if e["kind"] == "cuda_runtime"}
    for mark in events:
        if mark["kind"] == "user_annotation" and mark["name"].startswith("ProfilerStep#"):
            own = [
                e
                for e in events
                if e["kind"] == "kernel"
                and mark["begin"] <= calls.get(e["args"]["correlation"], 0) < mark["end"]
            ]
            lasts.append(max(e["end"] for e in own) - min(e["begin"] for e in own))  # fmt: skip
    measured = MeasuredTrace(path)
    assert [step.stage for step in measured.steps] == lasts
    assert measured.breakdown.length == pytest.approx(sum(lasts) / 3, rel=0.01)
