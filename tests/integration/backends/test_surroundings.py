"""Jobs with torch's own observers, modes and compiled code: dynprof does not affect them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests import processes, warm_interpreter
from tests.integration.scripts import TUNABLES, events, manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("first", ["the script", "dynprof"])
def test_the_scripts_execution_trace_observer(tmp_path: Path, first: str) -> None:
    """A process can have one; a second one crashes torch. The script's own stays and is whole."""
    run(
        tmp_path,
        f"""
        import json
        from torch.profiler import ExecutionTraceObserver
        def register():
            mine = ExecutionTraceObserver().register_callback("mine.json")
            mine.start()
            return mine
        asked = {{"active": 4, "experimental_config": {{"record_op_args": True}}}}
        if {first!r} == "the script":
            mine = register()
            window(**asked)
        else:
            window(**asked)
            steps(1)
            mine = register()
        torch.ones(2).sub(1)
        steps(5)
        idle()
        torch.ones(2).mul(2)
        mine.stop()
        mine.unregister_callback()
        names = [node["name"] for node in json.load(open("mine.json"))["nodes"]]
        assert {{"aten::sub", "aten::mul"}} <= set(names), names
        window(active=1, experimental_config={{"record_op_args": True}})
        steps(2)
        idle()
        """,
    )
    disturbed, after = manifests(tmp_path)
    assert "the script has an ExecutionTraceObserver of its own" in str(disturbed.lost)
    assert (disturbed.complete, after.complete, after.lost) == (True, True, ())


@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_a_trace_whose_end_cannot_be_written(tmp_path: Path, closing: str) -> None:
    """Libkineto does not notice the failure; dynprof does not accept the truncated trace."""
    log = run(
        tmp_path,
        f"""
        import resource, sys
        steps(3)
        window(active=3)
        steps(4)
        idle()
        dp.shutdown()
        sys.path.append({str(processes.ROOT)!r})
        from tests.integration.scripts import manifests
        size = manifests(Path.cwd())[0].trace_bytes_raw
        dp.init("prof_config")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 20, resource.RLIM_INFINITY))
        window(active=3)
        steps(4)
        idle()
        """,
        closing,
    )
    assert "libkineto could not write the whole trace" in log
    assert len(list(tmp_path.rglob("*.gz"))) == 1


def test_modes_of_the_script_do_not_see_step_marks(tmp_path: Path) -> None:
    """A mode that counts operators, or forbids unknown ones, sees only those of the script."""
    run(
        tmp_path,
        """
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode
        seen = []
        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))
        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))
        with Functions(), Operators():
            window(active=3)
            steps(5)
        idle()
        assert seen and not [name for name in seen if "record_function" in name], seen
        """,
    )
    (manifest,) = manifests(tmp_path)
    marks = [e for e in events(tmp_path, manifest) if e["name"].startswith("ProfilerStep#")]
    assert len({mark["name"] for mark in marks}) == 3


def test_a_step_inside_compiled_code(tmp_path: Path) -> None:
    """step() breaks the graph once; a new step number causes no new compilation."""
    run(
        tmp_path,
        """
        from torch._dynamo.utils import counters
        @torch.compile(backend="eager")
        def train(x):
            y = x + 1
            dp.step()
            return y * 2
        for _ in range(12):
            train(torch.ones(3))
        assert counters["frames"]["total"] < 6, counters
        assert dp.status().step == 12
        window(active=3)
        for _ in range(4):
            train(torch.ones(3))
        idle()
        """,
    )
    assert manifests(tmp_path)[0].complete


BUSY = """
import sys, threading, time
from pathlib import Path
import torch
from dynprof.backends.torch.collectors import OperatorArguments
from dynprof.runtime.safe_write import PrivateFolder
over = threading.Event()
def work():
    weight = torch.randn(64, 64, requires_grad=True)
    while not over.is_set():
        value = torch.randn(64, 64)
        for _ in range(5):
            value = (value @ weight).relu()
        value.sum().backward()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for number in range(6):
    arguments = OperatorArguments(PrivateFolder(Path(str(number))))
    arguments.start()
    time.sleep(0.005)
    arguments.stop()
    assert arguments.save(Path("rank_0")) == ()
over.set()
for thread in threads:
    thread.join()
"""


def test_arguments_of_operators_with_other_computing_threads(tmp_path: Path) -> None:
    """Torch frees the writer of arguments at the end, so all threads have left it by then."""
    env = {**os.environ, "GLIBC_TUNABLES": TUNABLES}
    done = warm_interpreter.run(BUSY, tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rank_0.execution_trace.json").stat().st_size > 1000
