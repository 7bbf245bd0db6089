"""A capture of a real training job, read by the real HolisticTraceAnalysis.

HolisticTraceAnalysis (``hta``) requires all of JupyterLab, so only CI installs it. CI uses a
separate environment with the few packages that HTA really imports.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip(  # not "hta": without the package, that name finds this folder
    "hta.version", reason="HolisticTraceAnalysis is not installed; CI reads captures with it"
)

from hta.trace_analysis import TraceAnalysis

from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.hta,
    pytest.mark.filterwarnings("ignore"),  # from HTA's use of pandas; dynprof only runs in the job
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not installed; the training job that is captured needs it",
    ),
]

RANK = 3
STEPS = [1201, 1202, 1203, 1204, 1205]
"""The recorded steps. The window opens at step 1200, which is its warm-up."""

TRAINING = """
import json, sys, time
from pathlib import Path

import torch

import dynprof as dp

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(128, 32)
targets = inputs.sum(1, keepdim=True)

dp.init(sys.argv[1], rank=3)
dp.set_state({"cur_step": 1000})
config = Path(sys.argv[1], "profiler_config.json")
for step in range(1000, 1400):
    if step == 1050:  # an operator saves the config, in the way editors do
        beside = {"host_sys": ["CPU", "MEM"], "gc_detect_threshold": 0, "mstx": True}
        asked = {"activities": ["CPU"], "active": 5, "warmup": 1, "start_step": 1200,
                 "analyse": True, "experimental_config": beside}
        edited = config.with_suffix(".tmp")
        edited.write_text(json.dumps(asked))
        edited.replace(config)
        deadline = time.monotonic() + 30
        while dp.status().state != "waiting":
            if time.monotonic() > deadline:
                sys.exit(f"the edit was not taken: {dp.status()}")
            time.sleep(0.01)
    optimizer.zero_grad()
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    optimizer.step()
    dp.step()
dp.shutdown()
"""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with dynprof; return the folder of the captured window."""
    root = tmp_path_factory.mktemp("job")
    command = [sys.executable, "-c", TRAINING, str(root)]
    job = run(command)
    assert job.returncode == 0, job.stderr
    (folder,) = root.glob("step_*-*_*")
    return folder


@pytest.fixture(scope="module")
def trace(window: Path) -> Path:
    """Return the trace in the window's folder."""
    (path,) = window.glob("*.pt.trace.json.gz")
    return path


def test_the_trace_alone_tells_hta_its_rank(trace: Path) -> None:
    """HTA finds the rank that ``init()`` got in the trace alone."""
    analysis = TraceAnalysis(trace_files=[str(trace)])

    assert analysis.t.trace_files == {RANK: str(trace)}
    assert analysis.t.get_ranks() == [RANK]


def test_profiler_steps_carry_the_numbers_of_the_job(trace: Path) -> None:
    """HTA sees each recorded step once, under the job's number, and no step of the warm-up."""
    analysis = TraceAnalysis(trace_files={RANK: str(trace)}, include_last_profiler_step=True)

    assert [int(step) for step in analysis.get_profiler_steps()] == STEPS
    names = [name for name in _names(analysis) if name.startswith("ProfilerStep")]
    assert sorted(names) == [f"ProfilerStep#{step}" for step in STEPS]


def test_hta_drops_the_last_step_by_default(trace: Path) -> None:
    """HTA drops the last annotation as an unfinished step, unless told to keep it."""
    analysis = TraceAnalysis(trace_files={RANK: str(trace)})

    assert [int(step) for step in analysis.get_profiler_steps()] == STEPS[:-1]


def test_operators_fall_into_the_step_that_ran_them(trace: Path) -> None:
    """Each step contains the forward pass of its two layers."""
    analysis = TraceAnalysis(trace_files={RANK: str(trace)}, include_last_profiler_step=True)

    steps = map(int, analysis.t.get_trace(RANK)["iteration"])
    layers = Counter(
        step for step, name in zip(steps, _names(analysis), strict=True) if name == "aten::addmm"
    )
    assert layers == dict.fromkeys(STEPS, 2)


def test_a_window_folder_loads_as_it_is(window: Path, trace: Path) -> None:
    """HTA finds the trace in the window's folder and ignores the other files."""
    analysis = TraceAnalysis(trace_dir=str(window))

    assert analysis.t.trace_files == {RANK: str(trace)}


def _names(analysis: Any) -> list[str]:
    """Return the name of every event of the capture, in HTA's order."""
    symbols = analysis.t.symbol_table.get_sym_table()
    return [symbols[number] for number in analysis.t.get_trace(RANK)["name"]]
