"""Whole analyses: during the training, of broken captures, and of a real job's ranks."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.one_trace import write_analysis
from dynprof.captures.manifest import load_manifest
from dynprof.errors import CaptureError
from dynprof.profiler import analyse, profile, schedule
from tests.integration.analysis.traces import recorded, rows
from tests.integration.launching import end_well, ranks
from tests.integration.running import TORCH_JOB, RunningJob, below, wait_for
from tests.pace import slowness
from tests.processes import DYNPROF, run, start

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_place")


def test_an_edit_is_analysed_during_the_training(tmp_path: Path) -> None:
    """With ``"analyse": true`` tables and databases are written during the training.

    The manifest names the files that were not written, each with the reason. The log names those
    that the config requested, and the number of others.
    """
    script = (
        TORCH_JOB + 'dp.init("prof_config")\nwhile True:\n    train_one_step()\n    dp.step()\n'
    )
    with RunningJob(tmp_path, script) as job:
        job.when("training", lambda status: status.step > 3)
        settings = {"export_type": ["text", "db"], "l2_cache": True}
        job.edit(active=3, analyse=True, experimental_config=settings, metadata={"run": 7})
        manifest, _ = job.capture()
        wait_for("the log", lambda: "analysed step_" in job.log() or None)
        (folder,) = below(job.root, "ASCEND_PROFILER_OUTPUT")
        log, (metadata,) = job.log(), below(job.root, "profiler_metadata*.json")
        (saved,) = below(job.root, "*.info.json")
        left_out = load_manifest(saved).left_out
    names = {path.name for path in folder.iterdir()}
    assert {"operator_details.csv", "step_trace_time.csv", "op_statistic.csv"} <= names
    assert {"ascend_pytorch_profiler.db", "analysis.db"} <= names
    assert metadata.parent.name.startswith("step_")
    assert json.loads(metadata.read_text()) == {"run": 7}
    assert left_out["kernel_details.csv"] == "no device worked"
    assert f"    not written: l2_cache.csv, {left_out['l2_cache.csv']}\n" in log
    assert log.count("not written: ") == 1
    others = sum(len(name.split(", ")) for name in left_out) - 1
    shown = saved.relative_to(job.root)
    assert f"    {others} files have nothing to say here; {shown} names them\n" in log
    assert "request 1: analysed step_" in log
    info = json.loads((folder.parent / "profiler_info.json").read_text())
    assert info["config"]["common_config"]["active"] == 3
    found = [int(row["Step"]) for row in rows(folder / "step_trace_time.csv")]
    assert found == list(range(manifest.steps.first, manifest.steps.first + 3))


def test_a_python_capture_has_tables(tmp_path: Path) -> None:
    """Calls replace operators; tables without a meaning are not written."""
    with profile(backend="python", schedule=schedule(wait=0, warmup=0, active=2, repeat=1)) as prof:
        for _ in range(3):
            json.dumps({"a": [1]})
            prof.step()
    path = tmp_path / "a.py.trace.json"
    prof.export_chrome_trace(path)
    made = {found.name: found for found in write_analysis(MeasuredTrace(path), ["text"])}
    assert any("dumps" in row["Name"] for row in rows(made["operator_details.csv"]))
    assert [int(row["Step"]) for row in rows(made["step_trace_time.csv"])] == [0, 1]
    assert "memory_record.csv" not in made


def test_one_broken_capture_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning names a broken capture; two processes make the other tables."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for rank in range(2):
        recorded(tmp_path / f"rank{rank}.pt.trace.json")
    (tmp_path / "broken.pt.trace.json").write_text("no trace")
    with pytest.warns(UserWarning, match=r"broken\.pt\.trace\.json"):
        made = analyse(tmp_path, max_process_number=2)
    assert sum(path.name == "operator_details.csv" for path in made) == 2
    with pytest.raises(CaptureError, match=r"broken\.pt\.trace\.json"):
        analyse(tmp_path, max_process_number=1, strict=True)
    assert len(below(tmp_path, "operator_details.csv")) == 2


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
    """The worker processes end too, whichever signal kills the analysis."""
    (tmp_path / "pool.py").write_text(POOL)
    parent = start([sys.executable, "pool.py"], cwd=tmp_path)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate()
    assert pids
    wait_for("their end", lambda: not any(map(psutil.pid_exists, pids)) or None)


def test_the_operator_table_in_the_terminal(tmp_path: Path) -> None:
    """``dynprof top`` shows the operators with the longest self time."""
    recorded(tmp_path / "a.pt.trace.json")
    wide = {**os.environ, "COLUMNS": "120"}
    done = run([*DYNPROF, "top", tmp_path, "--limit", "5"], env=wide)
    assert done.returncode == 0, done.stderr
    assert "aten::" in done.stdout
    assert run([*DYNPROF, "top", tmp_path / "no"]).returncode == 2


RANKS = """
import time, torch
from dynprof.profiler import profile, schedule, tensorboard_trace_handler

torch.distributed.init_process_group("gloo")
handler = tensorboard_trace_handler("log", analyse_flag=False)
steps = schedule(wait=0, warmup=1, active=6, repeat=1)
with profile(schedule=steps, on_trace_ready=handler) as prof:
    for _ in range(7):
        time.sleep(LATE_S * (torch.distributed.get_rank() == 1))
        torch.distributed.all_reduce(torch.ones(1000))
        prof.step()
torch.distributed.destroy_process_group()
"""


def test_a_real_rank_that_keeps_the_others_waiting(tmp_path: Path) -> None:
    """Three processes reduce over gloo. The slow one is named, and each has its rows."""
    late_s = 0.2 * slowness()  # far above the variation of a busy machine
    with ranks(tmp_path, RANKS.replace("LATE_S", str(late_s)), 3) as running:
        end_well(running)
    done = run([*DYNPROF, "analyse", "log"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # At least 4 of 6: other processes may delay another rank as long.
    assert re.search(r"rank 1 comes last to [456] of 6 collectives", done.stderr), done.stderr
    table = rows(tmp_path / "log" / "analysis" / "ranks.csv")
    assert [(row["Rank"], row["Step"]) for row in table] == [
        (str(rank), str(step)) for rank in range(3) for step in range(1, 7)
    ]
    waiting = [
        sum(float(row["Communication(us)"]) for row in table[at : at + 6]) for at in (0, 6, 12)
    ]
    assert waiting[1] < min(waiting[0], waiting[2])
    assert min(waiting[0], waiting[2]) > 6 * 0.6e6 * late_s
