"""Bandwidths of collectives and copies, compared with plain loops over the raw events."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.communication import copies, traffic
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.real_traces import copy_name, on_each, raw_events, read

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
BYTES = {"Float": 4, "Long": 8, "Half": 2, "BFloat16": 2, "Byte": 1, "float": 4, "int": 4,
         "unsigned char": 1, "signed char": 1, "long": 8, "long int": 8, "double": 8}  # fmt: skip
TRANSFERS = {"allreduce": 2, "_allgather_base": 1, "_reduce_scatter_base": 1, "all_to_all": 1}
"""Transfers of a part to each of n - 1 ranks, as nccl-tests define them."""
FACTORS = (*TRANSFERS, "broadcast", "reduce")


def times_by_size(
    events: list[Event], members: int = 0
) -> dict[tuple[int | None, float | None], int]:
    """Return ns by the bytes and by the bus bandwidth factor of a collective.

    Its members are those of the only group, if there is one.
    """
    found: dict[tuple[int | None, float | None], int] = defaultdict(int)
    labels = [e for e in events if e.get("cat") == "user_annotation"
              and e["name"].startswith(("nccl:", "gloo:"))]  # fmt: skip
    kernels = [e for e in events if e.get("cat") == "kernel" and "nccl" in e["name"].lower()]
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"
             and "correlation" in e.get("args", {})}  # fmt: skip
    for event in [*kernels, *(e for e in labels if e["name"].startswith("gloo:"))]:
        args, size, factor = event["args"], None, None
        if name := args.get("Collective name"):
            size = max(args["In msg nelems"], args["Out msg nelems"]) * BYTES[args["dtype"]]
            factor = 1.0 if name in FACTORS else None
            if name in TRANSFERS:
                factor = TRANSFERS[name] * (args["Group size"] - 1) / args["Group size"]
        else:
            around = [event]
            if event in kernels:
                call = calls.get(args["correlation"])
                around = [one for one in labels if call
                          and (one["pid"], one["tid"]) == (call["pid"], call["tid"])
                          and one["ts"] <= call["ts"] < one["ts"] + one["dur"]]  # fmt: skip
            if around and "all_gather" not in around[-1]["name"]:
                label = max(around, key=lambda one: one["ts"])
                size = label_bytes(label["args"])
                if members and "all_reduce" in label["name"]:
                    factor = 2 * (members - 1) / members
        found[size, factor] += round(event["dur"] * 1000)
    return dict(found)


def label_bytes(args: Event) -> int | None:
    """Return the bytes of the tensors in a label."""
    whole = 0
    for shape, kind in zip(args.get("Input Dims", ()), args.get("Input type", ()), strict=True):
        count = BYTES[kind]
        for length in shape:
            count *= length
        whole += count
    return whole or None


def check(path: Path) -> MeasuredTrace:
    """Compare a trace's collectives with a plain count."""
    events, measured = raw_events(path), MeasuredTrace(path)
    found: dict[tuple[int | None, float | None], int] = defaultdict(int)
    for row in traffic(measured.trace, measured.messages):
        size = row.message.size if row.message.size > 0 else None
        found[size, row.message.factor if row.message.members > 0 else None] += row.total
        if size and row.message.factor and row.total:
            bus = row.bus(row.total)
            assert bus == pytest.approx(size / row.total * row.message.factor)
    said = read(path).get("distributedInfo", {})
    members = said["world_size"] if said.get("pg_count") == 1 else 0
    assert dict(found) == times_by_size(events, members)
    check_copies(events, measured)
    return measured


def check_copies(events: list[Event], measured: MeasuredTrace) -> None:
    """Compare copies of devices: all time, and the bytes where they are known."""
    time, size, sized = (defaultdict[str, int](int) for _ in range(3))
    for event in events:
        if str(event.get("cat")).lower() in ("gpu_memcpy", "memcpy"):
            length = round(event["dur"] * 1000)
            name = copy_name(event)
            time[name] += length
            if "bytes" in event["args"]:
                size[name] += event["args"]["bytes"]
                sized[name] += length
    rows = {
        f"Memcpy {row.direction}" + (f" ({row.source} -> {row.target})" if row.source else ""): row
        for row in copies(measured.trace)
    }
    assert {name: row.time for name, row in rows.items()} == time
    for name, row in rows.items():
        expected = size[name] / sized[name] if sized[name] else None
        assert row.bandwidth == (expected and pytest.approx(expected))


@on_each
def test_on_real_traces(path: Path) -> None:
    """This covers Kineto's message sizes, shapes in labels only, and neither."""
    check(path)


def random_collectives(folder: Path, seed: int) -> Path:
    """Write a trace with all kinds of kernels; some lack Kineto's arguments."""
    chance = random.Random(seed)  # noqa: S311 - nothing is secret here
    events: list[Event] = []
    now = 100.0
    for number in range(60):
        begin, now = now, round(now + chance.randint(1, 900_000) / 1000, 3)
        args: Event = {"device": 0, "stream": 20, "correlation": number}
        kind = chance.choice([*FACTORS, "coalesced", "barrier", "copy", "label"])
        category, name = "kernel", "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
        if kind == "copy":
            category, name = (
                "gpu_memcpy",
                chance.choice(
                    [
                        "Memcpy HtoD (Pageable -> Device)",
                        "Memcpy DtoH (Device -> Pinned)",
                        "Memcpy XtoY",
                    ]
                ),
            )
            args |= {"bytes": chance.randint(0, 10**7)} if chance.random() < 0.8 else {}
        elif kind == "label":
            shape = [chance.randint(1, 9), chance.randint(1, 9)]
            told = {"Input Dims": [shape], "Input type": [chance.choice(["float", "long int"])]}
            label = {"name": "nccl:all_reduce", "cat": "user_annotation", "args": told}
            events.append({**label, "ts": begin - 2, "dur": 1.5, "tid": 1})
            call = {
                "name": "cudaLaunchKernel",
                "cat": "cuda_runtime",
                "ts": begin - 1.5,
                "dur": 0.2,
            }
            events.append({**call, "tid": 1, "args": {"correlation": number}})
        else:
            wide = chance.randint(2, 9)
            elements = chance.randint(1, 10**6) if kind in FACTORS else 0
            less = elements // wide if kind in ("_allgather_base", "_reduce_scatter_base") else 0
            pair = (less or elements, elements)
            args |= {"Collective name": kind, "dtype": chance.choice(["Float", "BFloat16", "Byte"]),
                     "In msg nelems": pair[kind == "_reduce_scatter_base"], "Group size": wide,
                     "Out msg nelems": pair[kind != "_reduce_scatter_base"]}  # fmt: skip
        events.append({"name": name, "cat": category, "ts": begin, "dur": round(now - begin, 3),
                       "tid": 20, "args": args})  # fmt: skip
        now += 3
    whole = [{"ph": "X", "pid": 1, **event} for event in events]
    path = folder / f"collectives_{seed}.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": whole}))
    return path


def times_told(events: list[Event]) -> int:
    """Return the ns of all collectives."""
    return sum(round(e["dur"] * 1000) for e in events if "nccl" in e["name"] and e["tid"] == 20)


@pytest.mark.parametrize("seed", range(8))
def test_on_random_traces(tmp_path: Path, seed: int) -> None:
    """Every collective is in exactly one row."""
    path = random_collectives(tmp_path, seed)
    events, measured = raw_events(path), MeasuredTrace(path)
    found: dict[tuple[int | None, float | None], int] = defaultdict(int)
    for row in traffic(measured.trace, measured.messages):
        known = row.message.size > 0
        found[row.message.size if known else None, row.message.factor if known else None] += (
            row.total
        )
    expected: dict[tuple[int | None, float | None], int] = defaultdict(int)
    for (size, factor), time in times_by_size(events).items():
        expected[size or None, factor if size else None] += time
    assert dict(found) == dict(expected)
    assert sum(found.values()) == times_told(events)
    check_copies(events, measured)


@pytest.mark.parametrize(
    ("name", "elements", "size", "factor"),
    [
        ("allreduce", (1000, 1000), 4000, 1.5),
        ("allreduce_coalesced", (1000, 1000), 4000, 1.5),
        ("_allgather_base", (250, 1000), 4000, 0.75),
        ("all_gather", (250, 1000), 4000, 0.75),
        ("_reduce_scatter_base", (1000, 250), 4000, 0.75),
        ("reduce_scatter_tensor_coalesced", (1000, 250), 4000, 0.75),
        ("all_to_all", (1000, 1000), 4000, 0.75),
        ("all_to_allv", (900, 1000), 4000, None),
        ("all_to_all", (900, 1000), 4000, None),
        ("broadcast", (1000, 1000), 4000, 1.0),
        ("reduce", (1000, 1000), 4000, 1.0),
        ("gather", (250, 1000), 4000, 0.75),
        ("scatter", (1000, 250), 4000, 0.75),
        ("send", (1000, 1000), 4000, 1.0),
        ("barrier", (0, 0), None, None),
        ("a new one", (1000, 1000), None, None),
    ],
)
def test_sizes_and_factors(
    tmp_path: Path, name: str, elements: tuple[int, int], size: int | None, factor: float | None
) -> None:
    """Factors for four ranks are those of nccl-tests. Uneven exchanges have no bus bandwidth."""
    told = {"device": 0, "stream": 2, "Collective name": name, "dtype": "Float", "Group size": 4,
            "In msg nelems": elements[0], "Out msg nelems": elements[1]}  # fmt: skip
    kernel = {"ph": "X", "name": "ncclDevKernel", "cat": "kernel", "pid": 0, "tid": 2, "ts": 1,
              "dur": 2, "args": told}  # fmt: skip
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [kernel]}))
    measured = MeasuredTrace(path)
    (row,) = traffic(measured.trace, measured.messages)
    assert row.algorithm(row.total) == (size and size / 2000)
    assert row.bus(row.total) == (size and factor and pytest.approx(size / 2000 * factor))


@pytest.mark.parametrize(("label", "factor"), [("all_reduce", 1.5), ("all_to_all", None)])
def test_a_label_does_not_tell_even_from_uneven(
    tmp_path: Path, label: str, factor: float | None
) -> None:
    """Both exchanges have the label ``nccl:all_to_all``; the group is the only one."""
    given = {"Input Dims": [[1000]], "Input type": ["float"]}
    about = {"ph": "X", "pid": 1, "tid": 1, "ts": 1}
    events = [
        {**about, "cat": "user_annotation", "name": f"nccl:{label}", "dur": 9, "args": given},
        {**about, "cat": "cuda_runtime", "name": "launch", "dur": 2, "args": {"correlation": 5}},
        {**about, "cat": "kernel", "name": "ncclDevKernel", "ts": 5, "dur": 2,
         "args": {"device": 0, "stream": 2, "correlation": 5}},
    ]  # fmt: skip
    trace = {"distributedInfo": {"world_size": 4, "pg_count": 1}, "traceEvents": events}
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, **trace}))
    measured = MeasuredTrace(path)
    (row,) = traffic(measured.trace, measured.messages)
    assert row.algorithm(row.total) == 2
    assert row.bus(row.total) == (factor and 2 * factor)
