"""Promises of the Ascend PyTorch Profiler document that none of its samples shows."""

from __future__ import annotations

import json
import os
import re
from inspect import signature
from typing import TYPE_CHECKING

import pytest

from dynprof.profiler import (
    ExportType,
    ProfilerLevel,
    _ExperimentalConfig,
    _KinetoProfile,
    analyse,
    profile,
    tensorboard_trace_handler,
)
from dynprof.runtime.layout import host_name
from tests import warm_interpreter
from tests.integration.running import operators

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("own_place")


def work() -> None:
    """Run an operator."""
    torch.ones(4, 4).mm(torch.ones(4, 4))


def test_a_handler_without_a_folder_writes_into_the_working_directory(tmp_path: Path) -> None:
    """The trace is in the working directory, named ``{hostname}_{pid}``."""
    with profile(on_trace_ready=tensorboard_trace_handler(analyse_flag=False)):
        work()
    (trace,) = tmp_path.glob("*.pt.trace.json")
    assert trace.name.startswith(f"{host_name()}_{os.getpid()}.")


def test_a_handlers_folder_goes_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ASCEND_WORK_PATH`` is used only for a handler without ``dir_name``."""
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path / "work"))
    for handler in (
        tensorboard_trace_handler(dir_name="./result", analyse_flag=False),
        tensorboard_trace_handler(analyse_flag=False),
    ):
        with profile(on_trace_ready=handler):
            work()
    assert len(list((tmp_path / "result").glob("*.pt.trace.json"))) == 1
    assert len(list((tmp_path / "work" / "profiling_data").glob("*.pt.trace.json"))) == 1


def test_analyse_writes_the_tables_later(tmp_path: Path) -> None:
    """After a handler with ``analyse_flag=False``, ``analyse()`` writes the tables."""
    with profile(on_trace_ready=tensorboard_trace_handler("at_once")):
        work()
    assert list((tmp_path / "at_once").rglob("operator_details.csv"))
    with profile(on_trace_ready=tensorboard_trace_handler("later", analyse_flag=False)):
        work()
    assert not list((tmp_path / "later").rglob("operator_details.csv"))
    analyse(str(tmp_path / "later"))
    (table,) = (tmp_path / "later").rglob("operator_details.csv")
    assert table.parent.name == "ASCEND_PROFILER_OUTPUT"


def test_two_processes_with_one_handler_leave_a_trace_each(tmp_path: Path) -> None:
    """The second process adds a trace to the folder and removes none."""
    script = """
import sys, torch
from dynprof.profiler import profile, tensorboard_trace_handler
with profile(on_trace_ready=tensorboard_trace_handler("result", analyse_flag=False)):
    for _ in range(int(sys.argv[1])):
        torch.ones(4, 4).mm(torch.ones(4, 4))
"""
    for count in ("1", "2"):
        done = warm_interpreter.run(script, tmp_path, os.environ, (count,), unloads=False)
        assert done.returncode == 0, done.stderr
    traces = [json.loads(path.read_text()) for path in (tmp_path / "result").glob("*.json")]
    assert sorted(len(operators(trace, "aten::mm")) for trace in traces) == [1, 2]


def test_export_type_db_makes_a_database_in_place_of_tables(tmp_path: Path) -> None:
    """With ``ExportType.Db`` a handler makes a database and no table."""
    settings = _ExperimentalConfig(export_type=ExportType.Db)
    with profile(experimental_config=settings, on_trace_ready=tensorboard_trace_handler("result")):
        work()
    made = {path.name for path in (tmp_path / "result").rglob("*")}
    assert [name for name in made if re.fullmatch(r"ascend_pytorch_profiler.*\.db", name)]
    assert not [name for name in made if name.endswith(".csv")]


def test_an_export_makes_no_database(tmp_path: Path) -> None:
    """An export without a handler writes the trace alone."""
    with profile(experimental_config=_ExperimentalConfig(export_type=ExportType.Db)) as prof:
        work()
    prof.export_chrome_trace("result/trace.json")
    assert [path.name for path in (tmp_path / "result").rglob("*")] == ["trace.json"]


def test_stacks_are_the_lines_that_flamegraph_reads(tmp_path: Path) -> None:
    """Each line has frames, outermost first, and whole microseconds."""
    with profile(with_stack=True) as prof:
        for _ in range(100):
            work()
    prof.export_stacks("result_dir/stack.log", metric="self_cpu_time_total")
    lines = (tmp_path / "result_dir" / "stack.log").read_text().splitlines()
    assert all(re.fullmatch(r".+ \d+", line) for line in lines)
    assert any(re.search(r"work.*;aten::mm \d+$", line) for line in lines)


@pytest.mark.parametrize("name", ["schedule", "on_trace_ready", "use_cuda"])
def test_a_kineto_profile_has_neither_steps_nor_a_handler(name: str) -> None:
    """``_KinetoProfile`` has no ``schedule``, ``on_trace_ready``, ``use_cuda`` or step."""
    assert name in signature(profile).parameters
    assert name not in signature(_KinetoProfile).parameters
    assert not hasattr(_KinetoProfile, "step")


@pytest.mark.parametrize(
    ("level", "metrics"),
    [("Level0", "AiCoreNone"), ("Level1", "PipeUtilization"), ("Level2", "PipeUtilization")],
)
def test_levels_from_1_on_sample_the_pipes_of_ai_cores(level: str, metrics: str) -> None:
    """Each level of a script has its default ``aic_metrics``."""
    settings = _ExperimentalConfig(profiler_level=ProfilerLevel[level]).settings
    assert settings.aic_metrics == metrics


def test_metrics_of_the_level_get_no_remark(recwarn: pytest.WarningsRecorder) -> None:
    """Metrics that the level implies get no remark."""
    for named in (None, "PipeUtilization"):
        profile(experimental_config=_ExperimentalConfig(ProfilerLevel.Level1, named))
        said = [str(one.message) for one in recwarn if "aic_metrics" in str(one.message)]
        assert bool(said) == bool(named)
