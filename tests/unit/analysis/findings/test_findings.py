"""Each injected flaw is found with its cost; without it there is no such finding."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.findings.rules import all_findings, findings
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.breakdown import Breakdown
from tests.unit.analysis.findings.given_spans import DEVICE, HEALTHY, MS, Span, found, measured
from tests.unit.analysis.made_jobs import Job

if TYPE_CHECKING:
    from pathlib import Path


def test_the_first_device_may_be_idle(tmp_path: Path) -> None:
    """The first device only works before the steps: it is idle in all of them."""
    kernel = {"ph": "X", "pid": 1, "tid": 9, "cat": "kernel", "name": "gemm", "dur": 20 * MS}
    more = [{**kernel, "ts": ts * MS, "args": {"device": device, "stream": 7}}
            for ts, device in ((-50, 0), (10, 1), (110, 1))]  # fmt: skip
    one = measured(tmp_path, [("aten::mm", "cpu_op", 0, 1)], *more)
    said = "Device 0 (of 2) computes for 0% of it, and it is idle for 100%."
    assert said in one.breakdown.sentences()


def test_the_costliest_kernel_counts_steps_and_device_only(tmp_path: Path) -> None:
    """Kernels before the steps, and the same kernel on another device, do not count."""
    kernel = {"ph": "X", "pid": 1, "tid": 9, "cat": "kernel", "name": "gemm"}
    more = [
        {**kernel, "ts": ts * MS, "dur": 20 * MS, "args": {"device": device, "stream": 7}}
        for ts, device in ((-50, 0), (-25, 0), (10, 0), (110, 0), (10, 1), (40, 1), (110, 1))
    ]
    one = measured(tmp_path, [("aten::mm", "cpu_op", 0, 1)], *more)
    assert "gemm takes the most" not in found(one)
    more += [{**more[2], "ts": ts * MS} for ts in (40, 140)]
    gemm = found(measured(tmp_path, [("aten::mm", "cpu_op", 0, 1)], *more))["gemm takes the most"]
    assert (gemm.share, gemm.detail) == (0.4, "2 of them in a step take 40 ms.")


@pytest.mark.parametrize("spans", [HEALTHY, DEVICE])
def test_a_busy_step_has_no_findings(tmp_path: Path, spans: list[Span]) -> None:
    """Operators or a device that work all the time give no findings."""
    assert found(measured(tmp_path, spans)) == {}


FLAWS: dict[str, tuple[list[Span], list[Span], float]] = {
    "The step waits for data": (
        HEALTHY, [("enumerate(DataLoader)#_X.__next__", "user_annotation", 0, 30)], 0.30),
    "Garbage collection": (HEALTHY, [("collection of generation 2", "gc", 50, 20)], 0.20),
    "Recompilation": (
        HEALTHY, [("_compile.compile_inner (dynamo_timed)", "cpu_op", 99.01, 0.9),
                  ("backend_compile (dynamo_timed)", "user_annotation", 10, 25)], 0.259),
    "Python between the operators": ([("aten::mm", "cpu_op", 0, 24)], [], 0.76),
    "Many small operators": (
        [], [("aten::add", "cpu_op", n * 0.16, 0.009) for n in range(600)], 0.054),
    "aten::conv2d takes the most": ([], [("aten::conv2d", "cpu_op", 0, 60)], 0.60),
    "The optimizer takes long": (
        HEALTHY, [("Optimizer.step#Adam.step", "user_annotation", 60, 39)], 0.39),
    "Checkpoints hold the step up": (
        HEALTHY, [("checkpoint", "user_annotation", 60, 15)], 0.15),
    "Communication is exposed": (
        DEVICE[:6], [("ncclDevKernel_AllReduce", "kernel", 40, 55)], 0.456),
    "Copies from memory that is not pinned": (
        DEVICE[:6], [("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 60, 11)], 0.11),
}  # fmt: skip


@pytest.mark.parametrize("title", FLAWS)
def test_a_planted_flaw_is_found(tmp_path: Path, title: str) -> None:
    """A finding has the cost of a step, figures, and advice."""
    before, flaw, share = FLAWS[title]
    finding = found(measured(tmp_path, [*before, *flaw]))[title]
    assert finding.share == pytest.approx(share, abs=0.002)
    assert any(letter.isdigit() for letter in finding.detail)
    assert len(finding.advice) > 20
    if before in (HEALTHY, DEVICE):
        assert title not in found(measured(tmp_path, before))


def test_python_between_operators_has_a_line(tmp_path: Path) -> None:
    """With stacks, the innermost lines of the user's code are named; code outside steps is not."""
    frames: list[Span] = [
        ("train.py(9): main", "python_function", 0, 90),
        ("data.py(40): augment", "python_function", 40, 15),
        ("numpy/random.py(3): shuffle", "python_function", 42, 12),
    ]
    spans: list[Span] = [("aten::mm", "cpu_op", 0, 24), *frames]
    assert found(measured(tmp_path, spans))["Python between the operators"].detail == (
        "No operator and no collective runs for 76 ms of a step, 51 ms in main (defined at "
        "train.py:9); 12 ms in shuffle (defined at numpy/random.py:3), called by augment (defined "
        "at data.py:40)."
    )
    outer = found(measured(tmp_path, [spans[0], spans[2]]))["Python between the operators"].detail
    assert outer.endswith("76 ms of a step, 15 ms in augment (defined at data.py:40).")


BUSY: list[Span] = [("gemm", "kernel", 0, 100)]


def test_host_work_costs_nothing_while_the_device_works(tmp_path: Path) -> None:
    """This covers a slow loader, a collection, a synchronisation and a copy."""
    hidden: list[Span] = [
        ("dataloader", "user_annotation", 0, 60),
        ("collection", "gc", 60, 20),
        ("cudaStreamSynchronize", "cuda_runtime", 80, 19),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 20, 50),
    ]
    assert set(found(measured(tmp_path, [*BUSY, *hidden]))) == {"gemm takes the most"}


def test_a_device_that_is_behind_the_host(tmp_path: Path) -> None:
    """The host marks steps of 5 ms, and the device needs 50 ms for each: its time is shared out."""
    events: list[dict[str, Any]] = []
    common = {"ph": "X", "pid": 1, "tid": 1}
    for step in range(4):
        begin, ran = step * 5 * MS, step * 50 * MS
        name = f"ProfilerStep#{step}"
        events.append({**common, "name": name, "cat": "user_annotation", "ts": begin, "dur": 5000})
        for number, (kernel, since, took) in enumerate(
            (("gemm", 0, 40), ("ncclAllReduce", 40, 10))
        ):
            ids = {"correlation": step * 2 + number}
            launch = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "dur": 3, "args": ids}
            events.append({**common, **launch, "ts": begin + 10})
            args = {"device": 0, "stream": 7, **ids}
            kernels = {"name": kernel, "cat": "kernel", "ts": ran + since * MS, "dur": took * MS}
            events.append({**common, **kernels, "tid": 7, "args": args})
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    said = str(Breakdown(MeasuredTrace(path)))
    assert said.startswith(
        "A step takes 50 ms on the device (4 steps); the host finishes a step in 5"
    )
    assert "The device computes for 80% of it, 20% is communication that nothing hides" in said


def test_advice_on_sizes_fits_the_processor(tmp_path: Path) -> None:
    """The page has the sizes where shapes were recorded; advice for GPUs is for GPUs."""
    shapes = {"ph": "X", "pid": 1, "tid": 1, "name": "aten::mm", "cat": "cpu_op",
              "ts": 95 * MS, "dur": 5,
              "args": {"Input Dims": [[3, 3], [3, 3]], "Input type": ["float"] * 2}}  # fmt: skip
    for more, where in (
        ([], "Record with record_shapes, and look for small sizes"),
        ([shapes], "Look under Efficiency of operators on the page for small sizes"),
    ):
        said = found(measured(tmp_path, [("aten::mm", "cpu_op", 0, 90)], *more))
        advice = said["aten::mm takes the most"].advice
        assert advice.startswith(where)
        assert "autocast" not in advice
        assert "multiples of 8" not in advice


def test_the_flame_graph_is_advised_only_for_names_in_it(tmp_path: Path) -> None:
    """It has operators of the host, and no kernels."""
    in_graph = "Search for it in the flame graph"
    said = found(measured(tmp_path, [("aten::sort", "cpu_op", 0, 90)]))
    assert said["aten::sort takes the most"].advice.startswith(in_graph)
    said = found(measured(tmp_path, [("aten::sort", "cpu_op", 0, 1), ("bitonic", "kernel", 0, 90)]))
    assert in_graph not in said["bitonic takes the most"].advice


@pytest.mark.parametrize(
    ("kernel", "types", "advised"),
    [
        ("sm90_xmma_gemm_f32f32_f32f32_f32_tn_n", ["float"], True),
        ("some_gemm", ["c10::BFloat16"], False),
        ("some_gemm", ["float"], True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", [], False),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_nn_n", [], False),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8", [], False),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64", [], False),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", [], False),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1", [], True),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n", [], False),
        ("ampere_sgemm_128x64_tn", [], True),
        ("nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNT", [], False),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128", [], False),
        ("matmul_e2m1_nvfp4", [], False),
    ],
)
def test_autocast_is_advised_for_wide_types_only(
    tmp_path: Path, kernel: str, types: list[str], *, advised: bool
) -> None:
    """The inputs' types tell, or the kernel's name where no type was recorded."""
    of = {"Input Dims": [[8, 8], [8, 8]], "Input type": types * 2} if types else {}
    common = {"ph": "X", "pid": 1, "tid": 1}
    product = {"name": "aten::mm", "cat": "cpu_op", "ts": 0, "dur": 50, "args": of}
    launch = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": 10, "dur": 5}
    more = [{**common, **product}, {**common, **launch, "args": {"correlation": 1}},
            {**common, "tid": 7, "name": kernel, "cat": "kernel", "ts": 20, "dur": 90 * MS,
             "args": {"correlation": 1, "device": 0, "stream": 7}}]  # fmt: skip
    advice = found(measured(tmp_path, [], *more))[f"{kernel} takes the most"].advice
    assert "sizes that are small" in advice
    assert ("autocast" in advice) is advised


def test_memory_near_its_limit(tmp_path: Path) -> None:
    """The reserved memory is compared with the device's; below 90 percent there is no finding."""
    limit = [{"id": 0, "totalGlobalMem": 10**10}]
    for reserved, expected in ((9.6e9, True), (8.5e9, False)):
        args = {"Total Reserved": reserved, "Device Type": 1, "Device Id": 0, "Bytes": 1, "Addr": 1}
        event = {"ph": "i", "name": "[memory]", "ts": 5, "pid": 1, "tid": 1,
                 "args": {name: int(value) for name, value in args.items()}}  # fmt: skip
        said = found(measured(tmp_path, DEVICE, event, deviceProperties=limit))
        assert ("Memory is near its limit" in said) is expected
    assert list(found(measured(tmp_path, DEVICE, event, deviceProperties="odd"))) == []


def test_the_worst_comes_first(tmp_path: Path) -> None:
    """Findings are in the order of their cost."""
    spans = [*HEALTHY, ("collection", "gc", 50, 10), ("dataloader", "user_annotation", 0, 30)]
    two = findings(one := measured(tmp_path, spans), Breakdown(one))
    assert [finding.title for finding in two] == ["The step waits for data", "Garbage collection"]


def test_the_verdict_says_where_a_step_goes(tmp_path: Path) -> None:
    """The verdict covers devices, the host, traces without steps, and empty traces."""
    device = str(Breakdown(measured(tmp_path, DEVICE)))
    assert device == (
        "A step takes 100 ms (median of 2 steps). The device computes for 98% of it, and it is "
        "idle for 2%. On the host: forward 1% (guessed from operators); 99% is outside these."
    )
    third = {"ph": "X", "name": "ProfilerStep#9", "cat": "user_annotation", "pid": 1, "tid": 1,
             "ts": 10**6, "dur": 120 * MS}  # fmt: skip
    longer = str(Breakdown(measured(tmp_path, DEVICE, third)))
    assert "(median of 3 steps, from 100 ms to 120 ms; shares are of the mean, 107 ms)" in longer
    host = str(Breakdown(measured(tmp_path, HEALTHY)))
    assert "CPU operators run for 98% of it, and 2% is Python or waiting." in host
    assert host.endswith("On the host: forward 98% (guessed from operators), data loading 1%.")
    python = measured(
        tmp_path, [("time.sleep", "fee", 0, 60), ("work (train.py:3)", "fee", 60, 30)]
    )
    assert str(Breakdown(python)).endswith(
        "Python functions run or wait for 90% of it, and 10% is outside recorded calls."
    )
    assert found(python)["time.sleep takes the most"].detail == (
        "1 of them in a step takes 60 ms. Next comes work (train.py:3), 30 ms."
    )
    empty = tmp_path / "b.trace.json"
    empty.write_text('{"traceEvents": []}')
    assert str(Breakdown(MeasuredTrace(empty))) == "The trace holds no event with a duration."
    event = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 4000}
    empty.write_text(json.dumps({"traceEvents": [event]}))
    assert str(Breakdown(MeasuredTrace(empty))).startswith(
        "No step is marked; the trace spans 4 ms."
    )


def test_a_finding_knows_when_its_longest_part_ran(tmp_path: Path) -> None:
    """The longest of the kernels that it is about, and the longest piece of idle time."""
    job = Job()
    job.step()
    for place, length in enumerate((100, 300, 200)):
        job.launch("gemm", 10 + 10 * place, 20 + 310 * place, length)
    job.host("aten::item", 800, 200)
    at = {one.title: one.at for one in all_findings(job.measured(tmp_path), least=0)}
    assert at["gemm takes the most"] == (330_000, 300_000)
    assert at["The device waits for the host"] == (840_000, 160_000)
