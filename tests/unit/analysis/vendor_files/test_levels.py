"""Tables that each profiler_level omits, as in the vendor's document, and the files' places."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.one_trace import write_analysis
from dynprof.analysis.vendor_files.left_out import left_out
from tests.unit.analysis.vendor_files.captured import captured

if TYPE_CHECKING:
    from pathlib import Path

PEER = {"Collective name": "send", "In msg nelems": 1_000_000, "dtype": "Float", "Dst Rank": 1}
GROUP = {"Process Group Name": "pp"}


def call(category: str, name: str, at: float, number: int) -> dict[str, Any]:
    """Return a call of the host."""
    return {"cat": category, "name": name, "ts": at, "dur": 2, "args": {"correlation": number}}


def kernel(name: str, at: float, number: int, **told: Any) -> dict[str, Any]:
    """Return a kernel that takes 8 us."""
    args = {"device": 0, "stream": 7, "correlation": number, **told}
    return {"cat": "kernel", "name": name, "tid": 7, "ts": at, "dur": 8, "args": args}


EVENTS = [
    {"ph": "X", "pid": 1, "tid": 1, **event}
    for event in (
        {"cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0, "dur": 100},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 30},
        call("cuda_runtime", "cudaLaunchKernel", 2, 1),
        call("cuda_driver", "cuLaunchKernel", 5, 2),
        call("cuda_runtime", "cudaLaunchKernel", 10, 3),
        kernel("gemm", 20, 1, grid=[4, 2, 1]),
        kernel("triton_add", 30, 2, grid=[3, 1, 1]),
        kernel("ncclDevKernel_SendRecv", 40, 3, **PEER, **GROUP),
    )
]
TABLES = {"kernel_details.csv", "step_trace_time.csv", "op_statistic.csv"}
MORE = {"communication.json", "communication_matrix.json", "api_statistic.csv"}
TABLES_OF_ALL = {
    *TABLES, *MORE, "operator_details.csv", "memory_record.csv", "operator_memory.csv",
    "msprof_tx.csv", "data_preprocess.csv", "l2_cache.csv", "module_details.csv",
    "operator_flops.csv", "backward_operators.csv", "kernel_shapes.csv", "kernel_sequences.csv",
    "kernel_categories.csv", "operator_kernels.csv", "operator_counters.csv",
    "copy_bandwidth.csv", "collective_bandwidth.csv", "critical_path.csv", "iterations.csv",
    "critical_path_what_if.csv",
}  # fmt: skip
FILES_OF_ALL = {
    "stacks.folded", "stacks.speedscope.json", "ascend_pytorch_profiler.db", "analysis.db",
    "profiler_metadata.json",
}  # fmt: skip
STEP_ALONE, OPERATOR_ALONE = EVENTS[:1], EVENTS[:2]


def made(measured: MeasuredTrace, types: tuple[str, ...] = ("text",)) -> dict[str, Path]:
    """Return the files that are written."""
    found = write_analysis(measured, types)
    return {path.name: path for path in found}


def test_each_device_has_rows_of_its_own(tmp_path: Path) -> None:
    """A kernel runs once on one device, three times on another: shares are per device."""
    events = [*EVENTS, *(kernel("gemm", 20 + 10 * n, 1) for n in range(3))]
    for event in events[-3:]:
        event |= {"ph": "X", "pid": 1, "args": {**event["args"], "device": 1}}
    table = made(captured(tmp_path, events))["op_statistic.csv"]
    with table.open(newline="") as file:
        rows = [(row["Device_id"], row["OP Type"], row["Count"], row["Ratio(%)"])
                for row in csv.DictReader(file)]  # fmt: skip
    assert rows == [
        ("0", "gemm", "1", "33.333"),
        ("0", "ncclDevKernel_SendRecv", "1", "33.333"),
        ("0", "triton_add", "1", "33.333"),
        ("1", "gemm", "3", "100.000"),
    ]


@pytest.mark.parametrize(
    ("level", "there", "apis"),
    [
        ("Level_none", set(), set()),
        ("Level0", TABLES, set()),
        ("Level1", TABLES | MORE, {"cudaLaunchKernel"}),
        ("Level2", TABLES | MORE, {"cudaLaunchKernel", "cuLaunchKernel"}),
        (None, TABLES, set()),
    ],
)
def test_the_level_decides_which_tables_are_written(
    tmp_path: Path, level: str | None, there: set[str], apis: set[str]
) -> None:
    """Each level has its tables, calls and database."""
    inner = {"profiler_level": level} if level else {}
    measured = captured(tmp_path, EVENTS, experimental_config=inner)
    files = made(measured, ("text", "db"))
    assert set(files) & (TABLES | MORE) == there
    assert {"operator_details.csv", "trace_view.json"} <= set(files)
    reasons = left_out(measured)
    asked = level or "Level0"
    for name in (TABLES | MORE) - there:
        has_it = "Level0" if name in TABLES else "Level1"
        assert reasons[name] == f"profiler_level is {asked}; {has_it} has it"
    assert not there & set(reasons)
    if apis:
        rows = files["api_statistic.csv"].read_text().splitlines()[1:]
        assert {row.split(",")[2] for row in rows} == apis
    with closing(sqlite3.connect(files["ascend_pytorch_profiler_0.db"])) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        assert ("TASK" in tables) == bool(there)
        assert ("CANN_API" in tables) == bool(apis)
        if apis:
            query = "SELECT DISTINCT s.value FROM CANN_API a JOIN STRING_IDS s ON s.id = a.name"
            assert {name for (name,) in database.execute(query)} == apis
    assert ("analysis.db" in files) == bool(there)
    if there:
        with closing(sqlite3.connect(files["analysis.db"])) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            assert ("CommAnalyzerMatrix" in tables) == bool(apis)


@pytest.mark.parametrize("exported", ["text", "db"])
@pytest.mark.parametrize(
    ("level", "events"),
    [("Level_none", STEP_ALONE), ("Level0", STEP_ALONE), ("Level0", OPERATOR_ALONE),
     ("Level0", EVENTS), ("Level2", EVENTS)],
)  # fmt: skip
def test_each_file_has_contents_or_a_reason(
    tmp_path: Path, level: str, events: list[dict[str, Any]], exported: str
) -> None:
    """Each file of an analysis has content, or is listed with a reason."""
    inner = {"profiler_level": level, "export_type": exported}
    measured = captured(tmp_path, events, experimental_config=inner)
    files = {name.replace("_0.", "."): path for name, path in made(measured, (exported,)).items()}
    assert all(path.stat().st_size for path in files.values())
    named = {name for names in left_out(measured) for name in names.split(", ")}
    assert not named & set(files)
    if exported == "db":
        assert "tables in csv and json" in named
        assert not [name for name in files if name.endswith(".csv")]
        assert set(files) | named >= FILES_OF_ALL
    else:
        assert set(files) | named >= FILES_OF_ALL | TABLES_OF_ALL


def test_level_none_is_the_reason_for_missing_tables(tmp_path: Path) -> None:
    """``Level_none`` is the reason even with another setting, such as ``profile_memory``."""
    inner = {"profiler_level": "Level_none"}
    reasons = left_out(
        captured(tmp_path, STEP_ALONE, profile_memory=True, experimental_config=inner)
    )
    why = "profiler_level is Level_none; Level0 has it"
    assert reasons["operator_details.csv"] == reasons["module_details.csv"] == why
    assert reasons["memory_record.csv, operator_memory.csv, memory_timeline"] == why
    assert reasons["analysis.db"] == why
    assert "Level1 has it" in reasons["communication.json"]


@pytest.mark.parametrize("level", ["Level0", "Level1"])
def test_each_file_is_left_out_for_one_reason(tmp_path: Path, level: str) -> None:
    """Without a recorded collective, no level would have its files."""
    alone = [event for event in EVENTS if "Collective name" not in event.get("args", {})]
    reasons = left_out(captured(tmp_path, alone, experimental_config={"profiler_level": level}))
    why = [why for names, why in reasons.items() for name in names.split(", ")
           if name.startswith(("communication", "collective"))]  # fmt: skip
    assert why == ["no collective was recorded"] * 3


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        ({}, "nothing was marked; set mstx"),
        ({"mstx": True}, "nothing was marked"),
        ({"msprof_tx": True}, "nothing was marked"),
        ({"profiler_level": "Level_none"}, "nothing was marked"),
        (
            {"mstx": True, "mstx_domain_include": ["typo"]},
            "nothing was marked in the requested domains",
        ),
    ],
)
def test_a_window_with_mstx_is_not_advised_to_request_it(
    tmp_path: Path, inner: dict[str, Any], why: str
) -> None:
    """A window with ``mstx`` and no marks: the reason is that none were set, or a domain filter."""
    reasons = left_out(captured(tmp_path, EVENTS, experimental_config=inner))
    assert reasons["msprof_tx.csv"] == why


@pytest.mark.parametrize(
    ("asked", "said"),
    [(None, True), ("text", True), (["text"], True), ("db", False), (["text", "db"], False)],
)
def test_a_database_that_the_config_does_not_request_is_named(
    tmp_path: Path, asked: str | list[str] | None, said: bool
) -> None:
    """A missing database or missing tables are listed with the needed export_type."""
    inner = {"export_type": asked} if asked else {}
    reasons = left_out(captured(tmp_path, EVENTS, experimental_config=inner))
    why = reasons.get("ascend_pytorch_profiler.db", "")
    assert (why == "export_type is text only; add db for it") == said
    assert bool(why) == said
    tables = {"tables in csv and json": "export_type is db only; add text for them"}
    assert (tables.items() <= reasons.items()) == (asked == "db")


def test_a_trace_without_a_manifest_gives_every_table_it_can(tmp_path: Path) -> None:
    """A trace without a manifest gives each table that it can."""
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    measured = MeasuredTrace(path)
    assert set(made(measured)) >= TABLES | MORE
    reasons = left_out(measured)
    assert not (TABLES | MORE) & set(reasons)
    assert "AI CPU" in reasons["data_preprocess.csv"]
    assert "cache hits" in reasons["l2_cache.csv"]
    assert reasons["msprof_tx.csv"] == "nothing was marked"  # the config requests no domain


def test_files_of_the_recording_are_in_the_vendors_places(tmp_path: Path) -> None:
    """profiler_info is next to the tables' folder, for every export_type.

    In a folder with the vendor's name for a capture, both are directly in it.
    """
    vendors = tmp_path / "w0_20260101000000000_ascend_pt"
    for place in (tmp_path, vendors):
        place.mkdir(exist_ok=True)
        measured = captured(place, EVENTS, active=1)
        assert set(made(measured, ("db",))) >= {"profiler_info_0.json", "analysis.db"}
        files = made(measured)
        root = files["operator_details.csv"].parent.parent
        assert (root == place) == (place == vendors)
        assert files["profiler_info_0.json"].parent == root
        info = json.loads(files["profiler_info_0.json"].read_text())
        assert (info["config"]["common_config"]["active"], info["rank_id"]) == (1, 0)
        assert files["report.html"].parent == place / "analysis" / "host_1.rank0.1.pt"


@pytest.mark.parametrize(
    ("source", "world_size", "suffix"), [("", 1, ""), ("", 2, "_0"), ("RANK", 1, "_0")]
)
def test_file_names_without_a_rank_have_none(
    tmp_path: Path, source: str, world_size: int, suffix: str
) -> None:
    """The rank in file names is that of the launcher or the script.

    torch_npu's database parser and profiler_info do the same.
    """
    measured = captured(tmp_path, EVENTS)
    assert measured.manifest is not None
    update = {"rank_source": source, "world_size": world_size}
    measured.manifest = measured.manifest.model_copy(update=update)
    names = set(made(measured, ("text", "db")))
    assert {f"ascend_pytorch_profiler{suffix}.db", f"profiler_info{suffix}.json"} <= names
