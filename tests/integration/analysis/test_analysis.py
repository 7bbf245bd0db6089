"""From real captures to tables: the same numbers as torch's, the vendor's names, real devices'."""

from __future__ import annotations

import ast
import csv
import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.output import tables
from dynprof.analysis.output.database import API_TYPES, TABLES
from dynprof.analysis.output.stacks import folded
from dynprof.analysis.runs.one_trace import analyse_trace
from dynprof.errors import CaptureError
from dynprof.profiler import analyse, profile, schedule
from tests.integration.running import TORCH_JOB, RunningJob, wait_for
from tests.pace import slowness
from tests.processes import DYNPROF, ROOT, run, start

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("own_place")


REAL = Path(os.environ.get("DYNPROF_TRACES", ROOT.parent / "shared" / "traces"))
needs_real = pytest.mark.skipif(
    not REAL.is_dir(), reason="DYNPROF_TRACES names no folder of real GPU traces"
)
VENDOR = Path(os.environ.get("TORCH_NPU_WHEELS", "/none")) / "2.14.0" / "torch_npu" / "profiler"
STEPS = [1, 2, 3]

layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
optimizer = torch.optim.Adam(model.parameters())


def recorded(path: Path, **settings: Any) -> profile:
    """Train three recorded steps; write the trace."""
    with profile(schedule=schedule(wait=0, warmup=1, active=3, repeat=1), **settings) as prof:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 8, 32)).square().mean().backward()
            optimizer.step()
            prof.step()
    prof.export_chrome_trace(path)
    return prof


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "settings", [{}, {"record_shapes": True, "profile_memory": True}, {"with_stack": True}]
)
def test_operators_are_those_of_torchs_key_averages(
    tmp_path: Path, settings: dict[str, bool]
) -> None:
    """Count, own and total time of every name; with stacks torch counts frames as operators."""
    path = tmp_path / "a.pt.trace.json"
    torchs = {row.key: row for row in recorded(path, **settings).key_averages()}
    measured = MeasuredTrace(path)
    ours = {row.name: row for row in measured.averages}
    stacks = settings.get("with_stack")
    assert set(ours) <= set(torchs) if stacks else set(ours) == set(torchs)
    for name, row in ours.items():
        assert row.count == torchs[name].count, name
        assert row.total / 1000 == pytest.approx(torchs[name].cpu_time_total, abs=0.01), name
        if not stacks or name.startswith("aten::"):
            expected = torchs[name].self_cpu_time_total
            assert row.own / 1000 == pytest.approx(expected, abs=0.01), name


def test_tables_say_what_the_trace_says(tmp_path: Path) -> None:
    """A row for each operator with shapes and stack, for each step, for each allocation."""
    path = tmp_path / "a.pt.trace.json.gz"
    recorded(path, record_shapes=True, profile_memory=True, with_stack=True)
    made = {found.name: found for found in analyse_trace(path, ["text"])}
    measured = MeasuredTrace(path)
    details = rows(made["operator_details.csv"])
    products = [row for row in details if row["Name"] == "aten::addmm"]
    assert products[0]["Input Shapes"].startswith("32;32,32;32,32;")
    frames = products[0]["Call Stack"].split(";\r\n")
    assert "linear" in frames[0]
    assert frames[-1].endswith(("<module>", "_run_code", "wrapper", "main")) or len(frames) > 5
    own = sum(float(row["Host Self Duration(us)"]) for row in details)
    steps = float(sum(row.own for row in measured.averages
                      if row.name == "ProfilerStep*")) / 1000  # fmt: skip
    assert own + steps == pytest.approx(sum(measured.operators.own) / 1000, abs=0.01)
    times = rows(made["step_trace_time.csv"])
    assert [int(row["Step"]) for row in times] == STEPS
    for row in times:
        assert 0 < float(row["Computing"]) <= float(row["Stage"])
        assert row["Communication"] == "0.000"
    statistic = rows(made["op_statistic.csv"])
    assert sum(float(row["Ratio(%)"]) for row in statistic) == pytest.approx(100, abs=0.5)
    memory = rows(made["operator_memory.csv"])
    assert any(row["Name"] == "aten::empty" and row["Release Time(us)"] for row in memory)
    released = [row for row in memory if row["Release Time(us)"]]
    assert all(float(row["Duration(us)"]) >= 0 for row in released)
    assert "kernel_details.csv" not in made
    json.loads(made["trace_view.json"].read_text())


def test_the_database_is_joined_as_a_user_would(tmp_path: Path) -> None:
    """Names, shapes and call chains are found through their ids; steps hold their operators."""
    path = tmp_path / "a.pt.trace.json"
    prof = recorded(path, record_shapes=True, profile_memory=True, with_stack=True)
    (made,) = [found for found in analyse_trace(path, ["db"]) if found.suffix == ".db"]
    with sqlite3.connect(made) as database:
        found = database.execute(
            "SELECT n.value, count(*), sum(CAST(endNs AS INTEGER) - CAST(startNs AS INTEGER)) "
            "FROM PYTORCH_API a JOIN STRING_IDS n ON n.id = a.name "
            "JOIN ENUM_API_TYPE t ON t.id = a.type WHERE t.name = 'op' GROUP BY n.value"
        ).fetchall()
        shapes = database.execute(
            "SELECT s.value FROM PYTORCH_API a JOIN STRING_IDS n ON n.id = a.name "
            "JOIN STRING_IDS s ON s.id = a.inputShapes WHERE n.value = 'aten::addmm'"
        ).fetchone()
        frame = database.execute(
            "SELECT f.value FROM PYTORCH_API a JOIN STRING_IDS n ON n.id = a.name "
            "JOIN PYTORCH_CALLCHAINS c ON c.id = a.callchainId AND c.stackDepth = 0 "
            "JOIN STRING_IDS f ON f.id = c.stack WHERE n.value = 'aten::addmm'"
        ).fetchone()
        steps = database.execute("SELECT id, endNs - startNs FROM STEP_TIME").fetchall()
        memory = database.execute("SELECT max(totalAllocated) FROM MEMORY_RECORD").fetchone()
    database.close()
    torchs = {row.key: row for row in prof.key_averages()}
    by_name = {name: (count, took) for name, count, took in found}
    count, took = by_name["aten::addmm"]
    assert count == torchs["aten::addmm"].count
    assert took / 1000 == pytest.approx(torchs["aten::addmm"].cpu_time_total, abs=0.01)
    assert shapes[0].startswith("32;32,32;32,32;")
    assert "linear" in frame[0]
    assert [number for number, _ in steps] == STEPS
    assert memory[0] > 0


def test_events_are_read_back_from_parquet(tmp_path: Path) -> None:
    """Any reader of Parquet has every event, with names and whole ns since the epoch."""
    path = tmp_path / "a.pt.trace.json"
    prof = recorded(path)
    (made,) = [found for found in analyse_trace(path, []) if found.name == "events.parquet"]
    found = duckdb.execute(
        "SELECT name, count(*), sum(duration_ns), min(start_ns) "
        f"FROM '{made}' WHERE category = 'cpu_op' GROUP BY name"
    ).fetchall()
    torchs = {row.key: row for row in prof.key_averages()}
    assert "aten::addmm" in {name for name, *_ in found}
    for name, count, took, began in found:
        if name == "aten::addmm":
            assert count == torchs[name].count
            assert took / 1000 == pytest.approx(torchs[name].cpu_time_total, abs=0.01)
        assert began > 1_700_000_000 * 10**9


def test_folded_stacks_add_up(tmp_path: Path) -> None:
    """All lines together are what the threads did in the steps; frames first, operators last."""
    path = tmp_path / "a.pt.trace.json"
    recorded(path, with_stack=True)
    measured = MeasuredTrace(path)
    lines = list(folded(measured))
    outer = measured.calls.span[measured.calls.parent == -1]
    thread = measured.trace.spans["thread"]
    outer = outer[np.isin(thread[outer], thread[measured.trace.category("cpu_op")])]
    begins = measured.trace.spans["start"][outer]
    ends = begins + measured.trace.spans["length"][outer]
    first, last = measured.marked[0], measured.marked[-1]
    inside = np.minimum(ends, last[1] + last[2]) - np.maximum(begins, first[1])
    total = np.maximum(inside, 0).sum()
    lost_us = total / 1000 - sum(us for _, us in lines)  # each line is whole microseconds
    assert 0 <= lost_us <= len(lines)
    outside = {"ph": "X", "cat": "python_function", "name": "stray", "pid": 1, "tid": 1}
    trace = json.loads(path.read_text())
    late = max(event["ts"] for event in trace["traceEvents"] if "ts" in event)
    trace["traceEvents"].append({**outside, "ts": late + 1e6, "dur": 1e9})
    stray = tmp_path / "b.pt.trace.json"
    stray.write_text(json.dumps(trace))
    assert list(folded(MeasuredTrace(stray))) == lines
    assert any(stack.endswith("aten::linear;aten::addmm") for stack, _ in lines)
    assert len({stack for stack, _ in lines}) == len(lines)
    (flame,) = [made for made in analyse_trace(path, []) if made.name.endswith("speedscope.json")]
    shown = json.loads(flame.read_text())
    names = [frame["name"] for frame in shown["shared"]["frames"]]
    (sampled,) = shown["profiles"]
    rebuilt = [";".join(names[frame] for frame in sample) for sample in sampled["samples"]]
    assert list(zip(rebuilt, sampled["weights"], strict=True)) == lines
    assert sampled["endValue"] == sum(us for _, us in lines)


def test_an_edit_is_analysed_beside_the_training(tmp_path: Path) -> None:
    """``"analyse": true``: the tables come while the job trains on, and the log says so."""
    script = (
        TORCH_JOB + 'dp.init("prof_config")\nwhile True:\n    train_one_step()\n    dp.step()\n'
    )
    with RunningJob(tmp_path, script) as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(active=3, analyse=True, experimental_config={"export_type": ["text", "db"]},
                 metadata={"run": 7})  # fmt: skip
        manifest, _ = job.capture()
        wait_for("the log", lambda: "analysed step_" in job.log() or None)
        (folder,) = job.root.rglob("ASCEND_PROFILER_OUTPUT")
    names = {path.name for path in folder.iterdir()}
    assert {"operator_details.csv", "step_trace_time.csv", "op_statistic.csv"} <= names
    assert {"ascend_pytorch_profiler_0.db", "profiler_info_0.json"} <= names
    assert json.loads((folder / "profiler_metadata.json").read_text()) == {"run": 7}
    info = json.loads((folder / "profiler_info_0.json").read_text())
    assert info["config"]["common_config"]["active"] == 3
    found = [int(row["Step"]) for row in rows(folder / "step_trace_time.csv")]
    assert found == list(range(manifest.steps.first, manifest.steps.first + 3))


def test_a_python_capture_has_tables(tmp_path: Path) -> None:
    """Calls take the place of operators; what has no meaning is not written."""
    with profile(backend="python", schedule=schedule(wait=0, warmup=0, active=2, repeat=1)) as prof:
        for _ in range(3):
            json.dumps({"a": [1]})
            prof.step()
    path = tmp_path / "a.py.trace.json"
    prof.export_chrome_trace(path)
    made = {found.name: found for found in analyse_trace(path, ["text"])}
    assert any("dumps" in row["Name"] for row in rows(made["operator_details.csv"]))
    assert [int(row["Step"]) for row in rows(made["step_trace_time.csv"])] == [0, 1]
    assert "memory_record.csv" not in made


def test_one_broken_capture_does_not_keep_the_others(tmp_path: Path) -> None:
    """Two processes; the others are analysed, the broken one is named, the exit code says so."""
    for rank in range(2):
        recorded(tmp_path / f"rank{rank}.pt.trace.json")
    (tmp_path / "broken.pt.trace.json").write_text("no trace")
    with pytest.raises(CaptureError, match=r"broken\.pt\.trace\.json"):
        analyse(tmp_path, max_process_number=2)
    assert len(list(tmp_path.rglob("operator_details.csv"))) == 2
    done = run([*DYNPROF, "analyse", tmp_path])
    assert done.returncode == 1
    assert "broken.pt.trace.json" in done.stderr
    assert done.stdout.count("operator_details.csv") == 2


POOL = """
import os, time
from dynprof.analysis.runs.executors import processes
if __name__ == "__main__":
    with processes(2) as pool:
        pids = {pool.submit(os.getpid).result() for _ in range(2)}
        waiting = [pool.submit(time.sleep, 300) for _ in range(2)]
        print(*pids, flush=True)
        time.sleep(300)
"""


def test_killed_analysis_leaves_no_process_behind(tmp_path: Path) -> None:
    """However it is ended: the processes that work for it end too."""
    (tmp_path / "pool.py").write_text(POOL)
    parent = start([sys.executable, "pool.py"], cwd=tmp_path)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate()
    assert pids
    wait_for("their end", lambda: not any(map(psutil.pid_exists, pids)) or None)


def test_the_operator_table_in_the_terminal(tmp_path: Path) -> None:
    """``dynprof top`` shows the operators with the most time of their own."""
    recorded(tmp_path / "a.pt.trace.json")
    wide = {**os.environ, "COLUMNS": "120"}
    done = run([*DYNPROF, "top", tmp_path, "--limit", "5"], env=wide)
    assert done.returncode == 0, done.stderr
    assert "aten::" in done.stdout
    assert run([*DYNPROF, "top", tmp_path / "no"]).returncode == 2


@needs_real
@pytest.mark.parametrize("path", sorted(REAL.glob("*.gz")), ids=lambda path: path.stem)
def test_real_device_traces(tmp_path: Path, path: Path) -> None:
    """Every real trace gives tables whose times add up."""
    copy = tmp_path / path.name.replace(".json", ".trace.json")
    copy.write_bytes(path.read_bytes())
    made = {found.name: found for found in analyse_trace(copy, ["text", "db"])}
    measured = MeasuredTrace(copy)
    kernels = measured.trace.category("kernel", "gpu_memcpy", "gpu_memset")
    if kernels.any():
        total = sum(float(row["Total Time(us)"]) for row in rows(made["op_statistic.csv"]))
        assert total == pytest.approx(measured.trace.spans["length"][kernels].sum() / 1000)
        assert len(rows(made["kernel_details.csv"])) == kernels.sum()
    for step in measured.steps:
        assert 0 <= step.overlapped <= min(step.computing, step.communication)
        busy = step.computing + step.communication - step.overlapped
        assert busy + step.free == step.stage


@needs_real
def test_collectives_of_a_real_trace() -> None:
    """NCCL kernels are communication, and part of it is hidden behind computing."""
    measured = MeasuredTrace(REAL / "nccl_data.json.gz")
    steps = measured.steps
    assert [step.number for step in steps] == [4, 5, 6]
    assert all(0 < step.overlapped < step.communication for step in steps)


@pytest.mark.skipif(not VENDOR.is_dir(), reason="the wheels of torch_npu are fetched by make npu")
def test_headers_are_the_vendors() -> None:
    """Every header and column is one of the real wheel's, in its order."""
    views = (
        "".join(path.read_text() for path in (VENDOR / "analysis" / "prof_view").rglob("*.py"))
        + (VENDOR / "analysis" / "prof_common_func" / "_csv_headers.py").read_text()
    )
    lists = [
        tuple(ast.literal_eval(node))
        for tree in [ast.parse(text) for text in _modules()]
        for node in ast.walk(tree)
        if isinstance(node, ast.List) and node.elts and all(_is_text(e) for e in node.elts)
    ]
    for header in (tables.OPERATOR_DETAILS, tables.STEP_TRACE_TIME, tables.MEMORY_RECORD,
                   tables.OPERATOR_MEMORY):  # fmt: skip
        assert header in lists
    for column in tables.KERNEL_DETAILS:
        assert f'"{column}"' in views
    columns = (VENDOR / "analysis" / "prof_common_func" / "_constant.py").read_text()
    for name, described in TABLES.items():
        assert f'"{name}"' in columns
        for column, _ in described:
            assert f'("{column}", ' in columns or name == "ENUM_API_TYPE"
    assert all(str(number) in columns for number in API_TYPES)


def _modules() -> list[str]:
    return [path.read_text() for path in (VENDOR / "analysis" / "prof_view").rglob("*.py")]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


RANKS = """
import time, torch
from dynprof.profiler import profile, schedule, tensorboard_trace_handler

def train(rank, size):
    store = torch.distributed.FileStore("store", size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    handler = tensorboard_trace_handler("log", analyse_flag=False)
    steps = schedule(wait=0, warmup=1, active=6, repeat=1)
    with profile(schedule=steps, on_trace_ready=handler) as prof:
        for _ in range(7):
            time.sleep(LATE_S * (rank == 1))
            torch.distributed.all_reduce(torch.ones(1000))
            prof.step()
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(3,), nprocs=3)
"""


def test_a_real_rank_that_keeps_the_others_waiting(tmp_path: Path) -> None:
    """Three processes reduce over gloo, one of them is slow: it is named, and each has its rows."""
    late_s = 0.05 * slowness()
    (tmp_path / "job.py").write_text(RANKS.replace("LATE_S", str(late_s)))
    done = run([sys.executable, "job.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run([*DYNPROF, "analyse", "log"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 1 comes last to 6 of 6 collectives" in done.stderr
    table = rows(tmp_path / "log" / "analysis" / "ranks.csv")
    assert [(row["Rank"], row["Step"]) for row in table] == [
        (str(rank), str(step)) for rank in range(3) for step in range(1, 7)
    ]
    waiting = {row["Rank"]: float(row["Communication(us)"]) for row in table[3::6]}
    assert waiting["1"] < 0.4e6 * late_s
    assert waiting["0"] > 0.6e6 * late_s < waiting["2"]
