"""Iterations of inference servers are found by their labels, and told apart by kind."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from dynprof.analysis import load
from dynprof.analysis.findings.rules import all_findings
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.iteration_labels import read_label
from dynprof.analysis.rank_comparison.comparison import long_steps
from dynprof.analysis.report.contents import contents
from dynprof.analysis.runs.one_trace import write_analysis
from tests.real_traces import REAL, everything
from tests.unit.analysis.made_jobs import SIDE, Job

if TYPE_CHECKING:
    from pathlib import Path

LABEL = "user_annotation"
PERIOD = 5_000
"""Time from one iteration to the next, in us."""
Planted = tuple[str, str, int | None, int | None]
"""The label of an iteration; its kind, requests and tokens."""

VLLM: list[Planted] = [
    ("execute_context_2(8192)_generation_0(0)", "prefill", 2, 8192),
    ("execute_context_0(0)_generation_2(2)", "decode", 2, 2),
    ("execute_context_1(500)_generation_2(2)", "mixed", 3, 502),
    ("execute_context_0(0)_generation_0(0)", "idle", 0, 0),
]
VLLM_ON_ROCM: list[Planted] = [
    ("execute_77_context_1(sq77sk80sqsq5929sqsk6160)_generation_0(sq0sk0sqsq0sqsk0)",
     "prefill", 1, 77),
    ("execute_3_context_0(sq0sk0sqsq0sqsk0)_generation_3(sq3sk400sqsq3sqsk400)", "decode", 3, 3),
    ("execute_81_context_1(sq77sk80sqsq5929sqsk6160)_generation_2(sq4sk90sqsq8sqsk180)",
     "mixed", 3, 81),
]  # fmt: skip
SGLANG: list[Planted] = [
    ("step[EXTEND bs=17 toks=8192]", "prefill", 17, 8192),
    ("step[DECODE bs=32]", "decode", 32, 32),
    ("step[MIXED bs=2]", "mixed", 2, None),
    ("step[TARGET_VERIFY bs=4]", "target verify", 4, None),
    ("step[IDLE bs=0]", "idle", 0, None),
    ("step[DRAFT_EXTEND]", "draft extend", None, None),
]
TENSORRT: list[Planted] = [
    ("[Executor] _forward_step 123: 2 ctx reqs, 4096 ctx tokens, 30 gen reqs", "mixed", 32, 4126),
    ("[Executor] _forward_step 124: 0 ctx reqs, 0 ctx tokens, 32 gen reqs", "decode", 32, 32),
    ("[Executor] _forward_step 126: 1 ctx reqs, 70 ctx tokens, 0 gen reqs", "prefill", 1, 70),
]
OLDER_TENSORRT: list[Planted] = [
    ("[Executor] _forward_step: 2 ctx reqs, 30 gen reqs", "mixed", 32, None),
    ("[Executor] _forward_step: 0 ctx reqs, 30 gen reqs", "decode", 30, 30),
]
OTHERS = (
    "execute_context", "execute_context_1(2)_generation_3", "execute_context_a(1)_generation_0(0)",
    "pre execute_context_0(0)_generation_2(2)", "execute_context_0(0)_generation_2(2) post",
    "execute_context_0(0)_generation_9999999999999999999999(1)", "execute_model",
    "step[3]", "step[decode bs=3]", "step[DECODE bs=]", "step[DECODE bs=3", "substep[DECODE bs=3]",
    "[Executor] _forward_step", "[Executor] _forward_step 7", "[Executor] _sample_async 7",
    "[Executor] _forward_step x: 2 ctx reqs, 30 gen reqs", "ProfilerStep#3",
)  # fmt: skip


def serve(job: Job, planted: list[Planted], category: str = LABEL) -> None:
    """Add iterations of 1,000 us, each with two kernels, the second long after its end.

    A third kernel, of the sampler, is launched between two iterations.
    """
    for place, (name, *_) in enumerate(planted):
        begin = place * PERIOD
        job.host(name, begin, 1000, category)
        job.launch("attention", begin + 100, begin + 200, 300 + place)
        job.launch("gemm", begin + 900, begin + 1500, 700)
        job.launch("sampling", begin + 1100, begin + 2300, 50)


@pytest.mark.parametrize(
    ("planted", "numbers", "category"),
    [
        (VLLM, [0, 1, 2, 3], LABEL), (VLLM_ON_ROCM, [0, 1, 2], LABEL),
        (SGLANG, [0, 1, 2, 3, 4, 5], LABEL), (TENSORRT, [123, 124, 126], LABEL),
        (TENSORRT, [123, 124, 126], "nvtx"), (OLDER_TENSORRT, [0, 1], "nvtx"),
    ],
    ids=["vllm", "vllm on rocm", "sglang", "tensorrt", "tensorrt by nsys", "older tensorrt"],
)  # fmt: skip
def test_iterations_have_kind_requests_tokens_and_device_time(
    tmp_path: Path, planted: list[Planted], numbers: list[int], category: str
) -> None:
    """The device's time is that of the work which the iteration launched, also after its end."""
    job = Job()
    serve(job, planted, category)
    found = list(job.measured(tmp_path).iteration_times.values())
    assert [one.number for one in found] == numbers
    assert [(one.label.kind, one.label.requests, one.label.tokens) for one in found] == [
        tuple(labelled) for _, *labelled in planted
    ]
    for place, one in enumerate(found):
        busy, until_end = (300 + place) + 700, (1500 + 700) - 200
        assert (one.on_host, one.busy) == (1_000_000, busy * 1000)
        assert one.time == until_end * 1000
        if tokens := one.label.tokens:
            assert one.tokens_per_second == pytest.approx(tokens / (until_end / 1e6))


def test_other_names_are_no_iterations(tmp_path: Path) -> None:
    """Also those that begin like the labels of a server."""
    job = Job()
    for place, name in enumerate(OTHERS):
        assert read_label(name) is None, name
        if name != "ProfilerStep#3":
            job.host(name, place * PERIOD, 1000, LABEL)
    measured = job.measured(tmp_path)
    assert measured.iterations == {}
    assert str(measured.breakdown).startswith("No step is marked")


def test_of_nested_labels_the_outermost_counts(tmp_path: Path) -> None:
    """On each thread; the device's copy of a label is none. Labels may begin together."""
    job, (vllm, sglang) = Job(), (VLLM[1][0], SGLANG[1][0])
    job.host(sglang, 0, 900, LABEL)  # shorter, and first in the file
    job.host(vllm, 0, 1000, LABEL)
    job.host(vllm, 0, 1000, "nvtx")
    job.host(vllm, 2000, 1000, LABEL)
    job.host(sglang, 2100, 300, LABEL)
    job.host(sglang, 2500, 300, LABEL)
    job.host(sglang, 4000, 1000, LABEL)
    job.host(sglang, 4100, 500, LABEL, thread=5)
    job.host(vllm, 6000, 1000, "gpu_user_annotation")
    found = list(job.measured(tmp_path).iteration_times.values())
    assert [(one.begin, one.label.requests) for one in found] == [
        (0, 2), (2_000_000, 2), (4_000_000, 32), (4_100_000, 32),
    ]  # fmt: skip


def test_marked_steps_come_before_iterations(tmp_path: Path) -> None:
    """A script that marks its steps says what a step is."""
    job = Job()
    job.step(0)
    job.step(1)
    job.host(SGLANG[1][0], 100, 200, LABEL)
    measured = job.measured(tmp_path)
    assert [number for number, *_ in measured.marked] == [0, 1]
    assert (measured.iterations, measured.iteration_times) == ({}, {})
    assert measured.breakdown.a_step == "a step"


def served(folder: Path, *, slow: bool) -> MeasuredTrace:
    """Return 29 decode iterations of 2.4 ms and three of prefill; one may be slow."""
    job, begin = Job(), 0.0
    for place in range(32):
        tokens = {5: 8192, 9: 8192, 20: 16_384}.get(place)
        length = 26_000 * tokens / 8192 if tokens else 2400
        if slow and place == 12:
            length = 9000
        name = f"step[EXTEND bs=4 toks={tokens}]" if tokens else "step[DECODE bs=32]"
        job.host(name, begin, length, LABEL)
        job.launch("gemm", begin, begin + 10, length - 20)
        begin += length + 1000
    return job.measured(folder)


def test_verdict_has_medians_by_kind_and_no_prefill_is_an_outlier(tmp_path: Path) -> None:
    """Nor is one with more tokens. The time between iterations counts: 32 of 206.6 ms are idle."""
    measured = served(tmp_path, slow=False)
    assert measured.outliers == []
    first, work, period = measured.breakdown.sentences()
    assert first == (
        "29 decode iterations of 32 requests take 2.4 ms (median), "
        "3 prefill iterations of 8,192 to 16,384 tokens 26 ms."
    )
    assert work == "The device computes for 85% of the time, and it is idle for 15%."
    assert period == "An iteration begins every 3.4 ms (median)."


def test_a_host_that_waits_between_iterations_is_not_ahead_of_the_device(tmp_path: Path) -> None:
    """Each label ends with the launch of a graph; the host then waits for its kernels."""
    job = Job()
    for place in range(4):
        begin = place * 10_400
        job.host("execute_context_0(0)_generation_8(8)", begin, 2400, LABEL)
        graph = job.call("cudaGraphLaunch", begin + 300, 20)
        for kernel in range(2):
            job.work("gemm", graph, begin + 400 + kernel * 4900, 4900)
        job.call("cudaStreamSynchronize", begin + 2500, 7700)
    assert job.measured(tmp_path).breakdown.sentences() == [
        "4 decode iterations of 8 requests take 9.8 ms (median).",
        "The device computes for 95% of the time, and it is idle for 5%.",
    ]


def test_an_iteration_does_not_last_longer_for_work_from_before_the_recording(
    tmp_path: Path,
) -> None:
    """The device runs it from 120 to 4,150 us, and the host waits for it from 200 us on."""
    job = Job()
    job.host("step[DECODE bs=8]", 0, 5000, LABEL)
    job.launch("sampling", 100, 110, 10, SIDE)
    job.launch("gather", 150, 4150, 10)
    copy = job.call("hipMemcpyWithStream", 200, 4000)
    job.work("Memcpy DtoH (Device -> Host)", copy, 4160, 10)
    job.launch("gemm", 4300, 4310, 600)
    measured = job.measured(tmp_path)
    (one,) = measured.iteration_times.values()
    assert (one.on_host, one.waited, one.on_device) == (
        5_000_000, (4150 - 200) * 1000, (4910 - 110 - 4030) * 1000,
    )  # fmt: skip
    assert one.tokens_per_second == pytest.approx(8 / 1050e-6)
    assert measured.breakdown.sentences() == [
        "1 decode iteration of 8 requests takes 1.05 ms.",
        "The device computes for 64% of the time, 1% is copying that nothing hides, and it is idle "
        "for 35%.",
        "Work from before the recording, at most 4.03 ms on the device, counts in no iteration.",
        "The host waits 3.95 ms for it.",
    ]
    assert list(load(measured.path).query("SELECT took_ns FROM steps").rows()) == [(1_050_000,)]


def test_the_wait_between_iterations_for_earlier_work_is_not_of_the_host(tmp_path: Path) -> None:
    """No call tells of the wait. The path is longer than the iterations by that work alone."""
    job = Job()
    job.work("old", 900, -10, 7000)
    begin, done = 0, 6990
    for _ in range(4):
        job.host("execute_context_0(0)_generation_8(8)", begin, 500, LABEL)
        job.launch("gemm", begin + 10, max(begin + 20, done), 1900)
        begin = done = max(begin + 20, done) + 1900
    measured = job.measured(tmp_path)
    path = measured.critical_path
    assert path is not None
    assert path.parts()["earlier work"] == (6990 - 500) * 1000 / 4
    assert [one.time for one in measured.iteration_times.values()] == [1_900_000] * 4
    own = path.length - path.parts()["earlier work"]
    assert own == (500 + 1900 + 3 * 1920) * 1000 / 4
    (host,) = [one for one in path.what_ifs if one.what == "the host's work"]
    assert host.on_path == path.parts()["host"]


def test_a_slow_iteration_is_an_outlier_of_its_kind(tmp_path: Path) -> None:
    """It is far shorter than a prefill, and longer than the other decode iterations."""
    measured = served(tmp_path, slow=True)
    assert [number for number, *_ in measured.outliers] == [12]
    verdict = contents(measured)["verdict"]
    assert "; iteration 12 took 9 ms, 3.8 times the median of its kind." in verdict
    title = "Iteration 12 takes longer than the other decode iterations"
    (found,) = (one for one in all_findings(measured) if one.title == title)
    assert found.detail.startswith("It takes 9 ms, 6.6 ms more than the other decode iterations.")


def test_ranks_name_long_iterations_among_their_kind() -> None:
    """A prefill is no outlier here either; a rank's slow decode iteration is."""
    lengths = [26_000 if place == 5 else 9000 if place == 12 else 2400 for place in range(20)]
    rows = [
        (0, place, 0, length * 1000, 0, 0, "prefill" if place == 5 else "decode", -1)
        for place, length in enumerate(lengths)
    ]
    database = duckdb.connect()
    columns = (
        "rank INT, step INT, begin_ns BIGINT, length_ns BIGINT, stage_ns BIGINT, "
        "preparing_ns BIGINT, kind VARCHAR, tokens INT"
    )
    database.execute(f"CREATE TABLE steps ({columns})")
    database.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    assert long_steps(database) == [
        "iteration 12 took 9 ms on rank 0, 3.8 times the median of its decode iterations"
    ]


def test_tables_query_and_page_have_the_iterations(tmp_path: Path) -> None:
    """With what is unknown left out."""
    job = Job()
    serve(job, SGLANG[:3])
    measured = job.measured(tmp_path)
    (table,) = (
        path for path in write_analysis(measured, ("text",)) if path.name == "iterations.csv"
    )
    with table.open(newline="") as file:
        rows = [
            (row["Iteration"], row["Kind"], row["Requests"], row["Tokens"], row["Device Busy(us)"],
             row["Time(us)"])
            for row in csv.DictReader(file)
        ]  # fmt: skip
    assert rows == [
        ("0", "prefill", "17", "8192", "1000.000", "2000.000"),
        ("1", "decode", "32", "32", "1001.000", "2000.000"),
        ("2", "mixed", "2", "N/A", "1002.000", "2000.000"),
    ]
    sql = "SELECT step, kind, requests, tokens, computing_ns FROM steps ORDER BY step"
    assert load(measured.path).query(sql).rows() == [
        (0, "prefill", 17, 8192, 1_000_000),
        (1, "decode", 32, 32, 1_001_000),
        (2, "mixed", 2, None, 1_002_000),
    ]
    page = contents(measured)
    assert page["title"].startswith("Iterations 0 to 2, rank 0")
    assert [row[:4] for row in page["iterations"]["rows"]] == [
        ["prefill", 0, 17, 8192], ["decode", 1, 32, 32], ["mixed", 2, 2, None],
    ]  # fmt: skip
    assert page["iterations"]["kinds"][1] == ["decode", 1, 32, 32, 2.0, 1.0, 1.001, 16_000]
    tracks = {title for title, _ in page["timeline"]["tracks"]}
    assert "iterations" in tracks


def busy_of(events: list[dict[str, Any]], outer: dict[str, Any]) -> int:
    """Return how long kernels run that were launched within a label, in ns, each ns once."""
    called = {
        event["args"]["correlation"]
        for event in events
        if event["kind"] in ("cuda_runtime", "cuda_driver")
        and outer["begin"] <= event["begin"] < outer["end"]
    }
    kernels = sorted(
        (event["begin"], event["end"])
        for event in events
        if event["kind"] == "kernel" and event["args"].get("correlation") in called
    )
    total = reached = 0
    for begin, end in kernels:
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


@pytest.mark.parametrize(
    ("name", "said"),
    [("vllm_decode", ("decode", 32, 32)), ("vllm_prefill_decode", ("mixed", 46, 8192)),
     ("sglang_decode", ("decode", 32, 32))],
)  # fmt: skip
def test_iteration_of_a_real_server(name: str, said: tuple[str, int, int]) -> None:
    """Counted over the raw events; SGLang's own label is inside that of its platform."""
    path = REAL / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("there is no folder of real GPU traces")
    events = everything(path)
    (outer,) = (event for event in events if event["name"].startswith("execute_"))
    (one,) = MeasuredTrace(path).iteration_times.values()
    assert tuple(one.label)[:3] == said
    assert (one.on_host, one.busy) == (outer["end"] - outer["begin"], busy_of(events, outer))
