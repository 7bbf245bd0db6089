"""Sequences of elementwise kernels, compared with plain loops over the raw events."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import random
import re
from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.findings.rules import findings
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.sequence_sources import joined_names, sources
from dynprof.analysis.measures.sequences import computed
from dynprof.analysis.report.contents import contents
from dynprof.analysis.vendor_files.tables import sequence_tables, write_tables
from tests.real_traces import H100, on_each, raw_events
from tests.unit.analysis.plain_trace import CALLS, ON_DEVICE, in_flight, kind_of

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
Found = dict[tuple[str, ...], list[float]]

FUSIBLE = ("elementwise", "pointwise", "triton_poi")
"""In names of elementwise kernels; torch.compile names its own after ``triton_poi``."""


def begin(event: Event) -> int:
    """Return when an event begins, in ns."""
    return round(Decimal(str(event["ts"])) * 1000)


def end(event: Event) -> int:
    """Return when it ends."""
    return begin(event) + round(Decimal(str(event["dur"])) * 1000)


def kind(name: str) -> str:
    """Return a kernel's name without its memory layout."""
    for one in ("vectorized_", "unrolled_", "legacy_", "gpu_kernel_impl_nocast<"):
        name = name.replace(one, "")
    name = re.sub(r"(kernel<)(\d+, )+", r"\1", name.replace("at::native::gpu_kernel_impl<", ""))
    return re.split(r", at::detail|, TrivialOffset| ?>\(at::| ?>\(int", name)[0]


def runs_of(events: list[Event]) -> list[list[Event]]:
    """Return the runs of elementwise kernels on a stream that directly follow each other.

    The first kernels of a stream are from before the recording if the trace has no launch of them.
    They are in no run with later ones.
    """
    calls = {e["args"].get("correlation", -1): e for e in events if kind_of(e) in CALLS}
    flying = in_flight(sorted(events, key=begin), calls)
    streams = defaultdict(list)
    for event in events:
        if kind_of(event) in ON_DEVICE:
            streams[event["args"]["device"], event["args"]["stream"]].append(event)
    found: list[list[Event]] = []
    for work in streams.values():
        run: list[Event] = []
        for event in sorted(work, key=lambda e: (begin(e), begin(e) - end(e))):
            name = event["name"].lower()
            fits = kind_of(event) == "kernel" and any(mark in name for mark in FUSIBLE)
            near = run and begin(event) - end(run[-1]) <= 100_000
            near = near and (id(event) in flying) == (id(run[-1]) in flying)
            if not (fits and near):
                found.append(run)
                run = []
            if fits:
                run.append(event)
        found.append(run)
    return [run for run in found if len(run) > 1]


def split(run: list[Event]) -> list[list[Event]]:
    """Return a run's repeated part, the number of repetitions, and the remainder."""
    names = [event["name"] for event in run]
    if len(set(names)) == 1:
        return [run]
    for period in range(2, len(run) // 2 + 1):
        if all(names[i] == names[i - period] for i in range(period, len(run))):
            pieces = [run[i : i + period] for i in range(0, len(run), period)]
            return [piece for piece in pieces if len(piece) > 1]
    return [run]


def plain(events: list[Event]) -> Found:
    """Return for each sequence count, kernel time, gaps and maximum saving, in us."""
    found: Found = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for run in runs_of(events):
        for piece in split(run):
            names = tuple(event["name"] for event in piece)
            times = [event["dur"] for event in piece]
            gaps = [max(0, begin(b) - end(a)) / 1000 for a, b in itertools.pairwise(piece)]
            saved = sum(times) - max(times) if len(set(map(kind, names))) > 1 else 0
            for place, value in enumerate((1, sum(times), sum(gaps), saved)):
                found[names][place] += value
    return dict(found)


def ours(measured: MeasuredTrace) -> Found:
    """Return dynprof's sequences."""
    return {
        one.names: [
            one.count, one.busy_ns.sum() / 1000, one.gaps_ns.sum() / 1000, one.saved_ns / 1000
        ]
        for one in measured.sequences
    }  # fmt: skip


def check(path: Path) -> MeasuredTrace:
    """Compare a trace's sequences with a plain count; no kernel is in two sequences."""
    measured = MeasuredTrace(path)
    expected, found = plain(raw_events(path)), ours(measured)
    assert set(found) == set(expected)
    for names, numbers in expected.items():
        assert found[names] == pytest.approx(numbers, abs=0.01 * max(1, numbers[0])), names
    places = [place for one in measured.sequences for place in one.kernels.ravel().tolist()]
    assert len(places) == len(set(places))
    assert [one.saved_ns for one in measured.sequences] == sorted(
        (one.saved_ns for one in measured.sequences), reverse=True
    )
    return measured


@on_each
def test_on_real_traces(path: Path) -> None:
    """This covers several vendors and versions; each kernel of a sequence has a source."""
    measured = check(path)
    found = sources(measured, measured.sequences)
    for one, source in zip(measured.sequences, found, strict=True):
        assert len(source.operators) == len(one.names)


@pytest.mark.parametrize("marked", [True, False])
def test_of_a_graph_the_call_is_named(tmp_path: Path, *, marked: bool) -> None:
    """The call is outside operators; the only thing around it may be a step's label."""
    with gzip.open(H100 / "graph.json.gz") as file:
        trace = json.load(file)
    events = trace["traceEvents"]
    kept = [e for e in events if marked or not str(e.get("name")).startswith("ProfilerStep#")]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**trace, "traceEvents": kept}))
    measured = MeasuredTrace(path)
    found = sources(measured, measured.sequences)
    assert {name for source in found for name in source.operators} == {"cudaGraphLaunch"}


KERNELS = ("elementwise<Add>", "elementwise<Mul>", "vectorized_elementwise<Relu>", "gemm")


def random_kernels(folder: Path, seed: int) -> Path:
    """Write kernels on three streams of two devices, with gaps near the limit."""
    generator = random.Random(seed)  # noqa: S311 - nothing is secret here
    events: list[Event] = []
    for device, stream in ((0, 7), (0, 8), (1, 8)):
        now = 0.0
        for _ in range(generator.randint(1, 80)):
            now = round(now + generator.choice([0, 0.5, 2, 99.999, 100, 100.001]), 3)
            copied = generator.random() < 0.05
            events.append(
                {"ph": "X", "pid": device, "tid": stream, "ts": now,
                 "cat": "gpu_memcpy" if copied else "kernel",
                 "name": generator.choices(KERNELS, weights=[5, 5, 2, 1])[0],
                 "dur": generator.randint(1, 9000) / 1000,
                 "args": {"device": device, "stream": stream}}
            )  # fmt: skip
            now = end(events[-1]) / 1000
    generator.shuffle(events)
    path = folder / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    return path


@pytest.mark.parametrize("seed", range(8))
def test_on_random_traces(tmp_path: Path, seed: int) -> None:
    """Runs repeat, break off, change the stream and are interrupted."""
    check(random_kernels(tmp_path, seed))


def job(names: list[str], *, gap: float, copy_between: bool = False) -> list[Event]:
    """Return four steps of 1 ms in which a line of user code launches kernels of 100 us."""
    found: list[Event] = []
    host = {"ph": "X", "pid": 9, "tid": 9}
    for step in range(4):
        start, now = 1000.0 * step, 1000.0 * step + 20
        label = {"cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        found.append({**host, **label, "ts": start, "dur": 1000})
        frame = {"cat": "python_function", "name": "train.py(12): activation"}
        found.append({**host, **frame, "ts": start + 1, "dur": 900})
        for place, name in enumerate(names):
            launched, number = start + 2 + place, 100 * step + place + 1
            operator = {"cat": "cpu_op", "name": f"aten::{name.split('<')[1][:3].lower()}"}
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel"}
            at = {"device": 0, "stream": 7}
            device = {"ph": "X", "pid": 0, "tid": 7}
            found += [
                {**host, **operator, "ts": launched, "dur": 0.9},
                {**host, **call, "ts": launched + 0.1, "dur": 0.5, "args": {"correlation": number}},
                {**device, "cat": "kernel", "name": name, "ts": now, "dur": 100,
                 "args": {**at, "correlation": number}},
            ]  # fmt: skip
            if copy_between:
                copied = {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)"}
                found.append({**device, **copied, "ts": now + 100, "dur": 0.5, "args": at})
            now += 100 + gap
    return found


def measured(folder: Path, events: list[Event]) -> MeasuredTrace:
    """Write events, and read them."""
    path = folder / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    return MeasuredTrace(path)


CHAIN = ["elementwise<Mul>", "elementwise<Mul>", "elementwise<Add>", "elementwise<Relu>"]
TITLE = "Kernels that could be one"


def test_work_from_before_the_recording_is_in_no_sequence_with_later_work(tmp_path: Path) -> None:
    """The first two kernels of the first step have no launch in the trace, so they are a pair."""
    lost = ("cuda_runtime", 1), ("cuda_runtime", 2)
    events = [e for e in job(CHAIN, gap=1)
              if (e["cat"], e.get("args", {}).get("correlation")) not in lost]  # fmt: skip
    found = {one.names: one.count for one in measured(tmp_path, events).sequences}
    assert found == {tuple(CHAIN): 3, tuple(CHAIN[:2]): 1, tuple(CHAIN[2:]): 1}
    check(tmp_path / "a.trace.json")


def test_a_planted_sequence_is_found(tmp_path: Path) -> None:
    """The finding has maximum saving, operators and line, also in table and page."""
    found = measured(tmp_path, job(CHAIN, gap=1))
    (one,) = (f for f in findings(found, found.breakdown, least=0) if f.title == TITLE)
    assert one.share == pytest.approx(0.3)
    assert one.detail == (
        "4 elementwise kernels of a step directly follow one another, for 0.3 ms beyond the "
        "longest of each sequence. Of that 0.3 ms in one sequence, 1 time at train.py:12 "
        "(activation): 2 x aten::mul; aten::add; aten::rel."
    )
    assert one.saves == "Fused, a step would be no shorter, as something else lasts as long."
    (path,) = write_tables(sequence_tables(found), tmp_path)
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row == {
        "Operators": "2 x aten::mul; aten::add; aten::rel",
        "Source Line": "train.py:12 (activation)",
        "Count": "4",
        "Kernels in Each": "4",
        "Kernel Time(us)": "1600.000",
        "Gaps Between(us)": "12.000",
        "Kernel Time Saved at Most(us)": "1200.000",
        "Kernels": joined_names(CHAIN),
    }
    assert contents(found)["sequences"]["rows"] == [
        [row["Operators"], row["Source Line"], 4, 4, 1.6, 0.012, 1.2]
    ]


def test_kernels_of_compiled_code_need_other_advice(tmp_path: Path) -> None:
    """The user compiled it already."""
    events = job(CHAIN, gap=1)
    for place, advice in enumerate(("torch.compile fuses them.", "torch.compile made this code")):
        found = measured(tmp_path, events)
        (one,) = (f for f in findings(found, found.breakdown, least=0) if f.title == TITLE)
        assert one.advice.startswith(advice)
        for event in events if not place else ():
            if event["cat"] == "cpu_op":
                event["name"] = "CompiledFunction"


def test_a_launch_call_is_no_operator_to_fuse(tmp_path: Path) -> None:
    """A kernel without an operator around its launch is left out of the list."""
    events = [one for one in job(CHAIN, gap=1) if one["name"] != "aten::add"]
    found = measured(tmp_path, events)
    (one,) = (f for f in findings(found, found.breakdown, least=0) if f.title == TITLE)
    assert one.detail.endswith("(activation): 2 x aten::mul; aten::rel.")


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(job(CHAIN, gap=1, copy_between=True), id="values are read between them"),
        pytest.param(job(CHAIN, gap=101), id="the host did something else between them"),
        pytest.param(job(["gemm<Mul>"] * 2 + ["gemm<Add>"] * 2, gap=1), id="no elementwise ones"),
        pytest.param(job(["elementwise<Mul>"] * 4, gap=1), id="one kind for many tensors"),
        pytest.param(
            job(
                [
                    "vectorized_elementwise_kernel<4, Mul<float>, A<3> >(int)",
                    "unrolled_elementwise_kernel<Mul<float>, A<3> >(int)",
                ]
                * 2,
                gap=1,
            ),
            id="one kind, laid out in two ways",
        ),
    ],
)
def test_kernels_that_cannot_be_fused_are_no_sequence(tmp_path: Path, events: list[Event]) -> None:
    """These have as many kernels of the same length, but they cannot be fused."""
    found = measured(tmp_path, events)
    assert not any(f.title == TITLE for f in findings(found, found.breakdown))
    assert not sum(one.saved_ns for one in found.sequences)


def test_a_launch_outside_of_operators_is_no_operator(tmp_path: Path) -> None:
    """The column of operators does not have the name of the call."""
    events = [e for e in job(CHAIN, gap=1) if e["cat"] != "cpu_op"]
    found = measured(tmp_path, events)
    (source,) = sources(found, found.sequences)
    assert joined_names(source.operators) == "4 x (outside of operators)"


def test_without_launches_the_source_is_unknown(tmp_path: Path) -> None:
    """The finding names no source instead of a guess."""
    events = [e for e in job(CHAIN, gap=1) if e["cat"] != "cuda_runtime"]
    found = measured(tmp_path, events)
    (source,) = sources(found, found.sequences)
    assert (source.operators, source.line) == (("", "", "", ""), "")
    assert joined_names(source.operators) == "4 x unknown"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("void at::vectorized_elementwise_kernel<4, F<float>, A<char*, 3> >(int)", "F<float>"),
        ("void at::unrolled_elementwise_kernel<F<float>, A<char*, 3>, L>(int)", "F<float>"),
        (
            "void at::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<F<float> >(x)>",
            "F<float>",
        ),
        (
            "at::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<f(B&)::{lambda()#2}"
            "::operator()() const::{lambda(float, int)#1}>(B&)::{lambda(int)#1}>(int)",
            "f(B&)::{lambda()#2}::operator()() const::{lambda(float, int)#1}",
        ),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("elementwise_kernel<", ""),
    ],
)
def test_a_kernels_operation_is_read_from_its_name(name: str, what: str) -> None:
    """The memory layout is not part of the name."""
    assert computed(name) == what


def test_names_in_a_row() -> None:
    """Equal names are counted; of many, the first are shown."""
    assert joined_names("aabca") == "2 x a; b; c; a"
    assert joined_names("aabca", 3) == "2 x a; b; c; ..."
    assert joined_names("aabca", 4) == "2 x a; b; c; a"
