"""The critical path on the page and in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.report.contents import contents, verdict
from tests.unit.analysis.made_jobs import SIDE, STEP, Job

if TYPE_CHECKING:
    from pathlib import Path


def busy(*, hidden: bool) -> Job:
    """Return a job whose device computes half of the time; the host waits for it, or hides it."""
    job = Job()
    job.step()
    if hidden:
        job.host("aten::slow", 20, 900)
        job.launch("gemm", 10, 20, 500)
        job.launch("add", 930, 940, 10)
    else:
        job.launch("gemm", 10, 20, 500)
        job.call("cudaDeviceSynchronize", 30, 495)
    return job


def test_the_page_has_a_section(tmp_path: Path) -> None:
    """The section has a bar for each step and what-if times in ms."""
    found = contents(busy(hidden=False).measured(tmp_path))["critical_path"]
    (step,) = found["steps"]
    assert (step["number"], step["length"]) == (0, STEP / 1000)
    assert sum(step["parts"].values()) == step["length"]
    assert step["parts"]["kernels"] == 0.5
    # Without the kernel the host still reaches its call at 30 us, and needs 475 us after it.
    assert ["gemm", 0.505, 0.495, 0.5] in found["what_ifs"]
    assert found["names"][0] == ["gemm", "kernels", 1, 0.5]
    assert sum(row[3] for row in found["names"]) == step["length"]
    assert found["count"] == 1
    assert "synchronisations" in found["about"][0]


def test_a_busy_device_that_nothing_waits_for_is_mentioned(tmp_path: Path) -> None:
    """The device computes for half of the step and nothing waits for it: the page says so."""
    measured = busy(hidden=True).measured(tmp_path)
    sentence = (
        "The critical path of the step takes 1 ms: 100% host; if the host's work cost nothing, it "
        "would take 0.52 ms."
    )
    assert sentence in verdict(measured)
    assert contents(measured)["verdict"].endswith(sentence)


def test_a_path_without_new_information_is_not_mentioned(tmp_path: Path) -> None:
    """The device is busy for half of the step, and the path has its kernels for as long."""
    said = verdict(busy(hidden=False).measured(tmp_path))
    assert not any("critical path" in one for one in said)


def test_unknown_waits_are_explained(tmp_path: Path) -> None:
    """Streams wait unrecorded: the page says so, and how to record it."""
    job = busy(hidden=False)
    job.launch("ncclKernel_AllReduce", 600, 700, 100, SIDE)
    about = contents(job.measured(tmp_path))["critical_path"]["about"]
    assert len(about) == 2
    assert "does not show what streams wait for" in about[1]


def test_a_trace_without_a_device(tmp_path: Path) -> None:
    """The path is the steps' own thread; no what-if time of the host is shown."""
    job = Job()
    job.step()
    job.host("aten::mm", 10, 800)
    found = contents(job.measured(tmp_path))["critical_path"]
    assert found["about"][0].startswith("No device worked")
    assert "collective" not in found["about"][0]
    assert found["what_ifs"] == []
    job.host("gloo:all_reduce", 850, 100, "user_annotation", thread=5)
    found = contents(job.measured(tmp_path))["critical_path"]
    assert found["about"][0].endswith(" Waiting for a collective counts as its work.")


def test_a_device_that_only_copied(tmp_path: Path) -> None:
    """The path has its copies, the verdict is about the host: they are not compared.

    Page and terminal output are made all the same.
    """
    job = Job()
    job.step()
    job.host("aten::copy_", 10, 400)
    job.work("Memcpy HtoD (Pinned -> Device)", job.call("cudaMemcpyAsync", 20, 5), 30, 900)
    measured = job.measured(tmp_path)
    assert measured.breakdown.on_host
    assert measured.critical_path
    assert not measured.critical_path.on_host
    assert not any("critical path" in one for one in verdict(measured))
    assert contents(measured)["critical_path"]["steps"]


def test_steps_that_differ_by_waits_are_explained(tmp_path: Path) -> None:
    """The device needs 900 us for each; the host waits for both in the second step.

    Where the host does not wait, nothing is said.
    """
    for waits in (True, False):
        job = Job()
        job.step(0, 500)
        job.launch("gemm", 10, 20, 900)
        job.step(1, 1000)
        job.launch("gemm", 1010, 1020, 900)
        job.call("cudaMemcpy" if waits else "cudaEventQuery", 1020, 900)
        said = [one for one in verdict(job.measured(tmp_path)) if one.startswith("Steps of the")]
        assert said == [
            "Steps of the host differ by how long it waits for the device, 0 ms to 0.9 ms, most in "
            "cudaMemcpy; from start to end the device needs 0.9 ms for what a step "
            "launches."
        ] * waits  # fmt: skip
