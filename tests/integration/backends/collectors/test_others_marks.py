"""Marks of a script by torch's own functions: ``record_function`` and NVTX."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import events, manifests, run

torch = pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

NONE = 'experimental_config={"profiler_level": "Level_none", "mstx": True}'
PYTHON = 'backend="python", experimental_config={"mstx": True}'
BEGAN, ENDS = "began before the window", "ends after the window"


def marks(folder: Path, number: int = 0) -> list[dict[str, Any]]:
    """Return the marks in a capture, in the order of the file."""
    manifest = manifests(folder)[number]
    return [event for event in events(folder, manifest) if event.get("cat") == "mstx"]


def named(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the marks of a name."""
    return [event for event in found if event["name"] == name]


RANGES = """
from torch.profiler import record_function
import torch.autograd.profiler as torchs

before = torchs.record_function.__enter__, torchs.record_function.__exit__

@torchs.record_function("decorated")
def fall(deep):
    return fall(deep - 1) if deep else work()

epoch, early = record_function("epoch"), record_function("early")
epoch.__enter__()
early.__enter__()
"""


@pytest.mark.parametrize("settings", [NONE, PYTHON], ids=["marks", "python"])
def test_record_function_is_recorded_without_torchs_profiler(tmp_path: Path, settings: str) -> None:
    """Ranges are recorded as context and decorator, on all threads, crossing, with exceptions."""
    script = f"""
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    window(active=3, {settings})
    steps(1)
    early.__exit__(None, None, None)
    with record_function("block"):
        weight.sum().backward()
    optimizer.step()
    fall(2)
    at_once(2, lambda: fall(0))
    try:
        with record_function("raising"):
            raise ValueError
    except ValueError:
        pass
    late = record_function("late")
    late.__enter__()
    steps(5)
    idle()
    late.__exit__(None, None, None)
    epoch.__exit__(None, None, None)
    assert before == (torchs.record_function.__enter__, torchs.record_function.__exit__)
    """
    run(tmp_path, RANGES + dedent(script))
    found = marks(tmp_path)
    assert {event["args"]["domain"] for event in found} == {"record_function"}
    cuts = {event["name"]: event["args"].get("cut", "") for event in found}
    assert cuts == {
        "early": BEGAN, "block": "", "Optimizer.step#SGD.step": "", "decorated": "",
        "raising": "", "late": ENDS,
    }  # fmt: skip
    decorated = named(found, "decorated")
    assert len(decorated) == 5
    assert len({event["args"]["thread"] for event in decorated}) == 3
    threads = [event["args"]["thread"] for event in decorated]
    falls = [e for e in decorated if threads.count(e["args"]["thread"]) == 3]
    falls.sort(key=lambda event: event["ts"])
    ends = [event["ts"] + event["dur"] for event in falls]
    assert ends == sorted(ends, reverse=True)  # each is inside the one that called it


def test_windows_of_torch_have_them_once(tmp_path: Path) -> None:
    """Kineto records the ranges itself, and the patches of torch's functions are undone."""
    script = """
    window(active=2, experimental_config={"mstx": True})
    steps(1)
    with record_function("block"):
        work()
    steps(5)
    idle()
    assert before == (torchs.record_function.__enter__, torchs.record_function.__exit__)
    """
    run(tmp_path, RANGES + dedent(script))
    assert marks(tmp_path) == []
    found = [e for e in events(tmp_path, manifests(tmp_path)[0]) if e["name"] == "block"]
    assert [event["cat"] for event in found] == ["user_annotation"]


NVTX = """
import contextlib
from torch.cuda import nvtx
from torch.cuda.nvtx import range_pop  # kept by the script
functions = nvtx._nvtx

class Noted:
    def __init__(self):
        self.calls, self.depth = [], 0
    def markA(self, message):
        self.calls.append(("mark", message))
    def rangePushA(self, message):
        self.depth += 1
        return self.depth - 1
    def rangePop(self):
        self.depth -= 1
        return self.depth
    def rangeStartA(self, message):
        return 7000 + len(message)
    def rangeEnd(self, number):
        self.calls.append(("end", number))

def said(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)
"""
LEVELS = {"torch": 'experimental_config={"mstx": True}', "marks": NONE}


@pytest.mark.parametrize("level", LEVELS)
def test_nvtx_is_recorded_in_every_window_with_marks(tmp_path: Path, level: str) -> None:
    """Moments and ranges that nest, cross, or cross the window's ends are recorded."""
    script = f"""
    nvtx._nvtx = noted = Noted()
    nvtx.range_push("early")
    crossing = nvtx.range_start("crossing")
    window(active=2, {LEVELS[level]})
    steps(1)
    assert range_pop() == 0
    nvtx.range_end(crossing)
    nvtx.mark("here")
    assert nvtx.range_push("outer") == 0
    with nvtx.range("inner {{}}", 7):
        work()
    thread = threading.Thread(target=lambda: nvtx.range_push("elsewhere"))
    thread.start()
    thread.join()
    number = nvtx.range_start("handed over")
    assert number == 7000 + len("handed over")
    assert said(nvtx.range_end, []) is None
    steps(5)
    idle()
    nvtx.range_end(number)
    assert range_pop() == 1
    assert nvtx._nvtx is noted
    """
    run(tmp_path, NVTX + dedent(script))
    found = marks(tmp_path)
    assert {event["args"]["domain"] for event in found} == {"nvtx"}
    cuts = sorted((event["name"], event["args"].get("cut", "")) for event in found)
    unnamed = "(begun before the window)"
    assert cuts == [
        (unnamed, BEGAN), (unnamed, BEGAN), ("elsewhere", ENDS), ("handed over", ENDS),
        ("here", ""), ("inner 7", ""), ("outer", ENDS),
    ]  # fmt: skip
    (inner,), (outer,) = named(found, "inner 7"), named(found, "outer")
    assert outer["ts"] <= inner["ts"] <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert [event["args"]["kind"] for event in (inner, *named(found, "handed over"))] == [
        "push/pop", "start/end",
    ]  # fmt: skip


def test_nvtx_raises_in_a_window_as_outside(tmp_path: Path) -> None:
    """A script that handles errors behaves as without a window; its marks are recorded."""
    script = f"""
    def all_of_it():
        with contextlib.ExitStack() as block:
            entered = said(block.enter_context, nvtx.range("block"))
            return [
                entered, said(nvtx.mark, "here"), said(nvtx.range_push, "step"), said(range_pop),
                said(range_pop), said(nvtx.range_start, "start"), said(nvtx.range_end, 1),
                said(nvtx.mark, 5),
            ]
    outside = all_of_it()
    window(active=2, {NONE})
    steps(1)
    assert nvtx._nvtx is not functions
    assert all_of_it() == outside, (all_of_it(), outside)
    steps(5)
    idle()
    assert nvtx._nvtx is functions
    assert hasattr(functions, "rangeStartA") or RuntimeError in [one[0] for one in outside]
    """
    run(tmp_path, NVTX + dedent(script))
    found = marks(tmp_path)
    assert [event["name"] for event in named(found, "here")] == ["here"]
    (block,), (step,) = named(found, "block"), named(found, "step")
    raised = block["ts"] + block["dur"] <= step["ts"]  # its body did not run
    assert raised == (torch.version.cuda is None)  # with CUDA, torch's functions do not raise
    assert "cut" not in step["args"]


def test_domain_filters_apply_to_torch_marks(tmp_path: Path) -> None:
    """Domain filters work for them as for marks of ``mstx``."""
    script = """
    nvtx._nvtx = Noted()
    level = {"profiler_level": "Level_none", "mstx": True}
    window(active=2, experimental_config={**level, "mstx_domain_exclude": ["record_function"]})
    steps(1)
    nvtx.range_push("open")
    nvtx.mark("here")
    fall(1)
    steps(5)
    idle()
    window(active=2, experimental_config={**level, "mstx_domain_include": ["record_function"]})
    steps(1)
    nvtx.mark("here")
    fall(1)
    steps(5)
    idle()
    """
    run(tmp_path, NVTX + RANGES + dedent(script))
    assert sorted(event["name"] for event in marks(tmp_path)) == ["here", "open"]
    assert [event["name"] for event in marks(tmp_path, 1)] == ["decorated", "decorated"]


def test_overlapping_windows_each_have_the_marks(tmp_path: Path) -> None:
    """A script's window of marks overlaps an operator's; either may close first."""
    script = f"""
    from dynprof.profiler import ProfilerLevel, _ExperimentalConfig, profile
    settings = _ExperimentalConfig(profiler_level=ProfilerLevel.Level_none, mstx=True)
    for first in ("operator", "script"):
        mine = profile(experimental_config=settings)
        window(active=2, {NONE})
        steps(1)
        mine.start()
        fall(0)
        if first == "script":
            mine.stop()
        steps(5)
        idle()
        if first == "operator":
            mine.stop()
        mine.export_chrome_trace(f"{{first}}.json")
        assert Path(f"{{first}}.json").read_text().count('"decorated"') == 1
        assert before == (torchs.record_function.__enter__, torchs.record_function.__exit__)
    """
    run(tmp_path, RANGES + dedent(script))
    for number in range(2):
        assert len(named(marks(tmp_path, number), "decorated")) == 1


RANGED = """
import torch
from torch.profiler import record_function

def ranged(x):
    with record_function("compiled"):
        return x * 2 + 1
"""


def test_compiled_code_is_the_same_as_without_a_window(tmp_path: Path) -> None:
    """Ranges in compiled code cause no additional graph breaks; TorchScript accepts them too."""
    (tmp_path / "ranged.py").write_text(RANGED)
    script = f"""
    import sys
    from torch._dynamo.utils import counters
    sys.path.insert(0, ".")
    from ranged import ranged

    def compiled():
        torch._dynamo.reset()
        counters.clear()
        fast = torch.compile(ranged, backend="aot_eager")
        assert all(float(fast(torch.ones(1))) == 3 for _ in range(3))
        assert float(torch.jit.script(ranged)(torch.ones(1))) == 3
        return sum(counters["graph_break"].values()), dict(counters["stats"])

    outside = compiled()
    window(active=2, {NONE})
    steps(1)
    assert compiled() == outside, outside
    steps(5)
    idle()
    """
    run(tmp_path, dedent(script))


def test_a_forked_child_records_no_marks(tmp_path: Path) -> None:
    """The parent's marks are not recorded there, and all functions work as usual."""
    script = f"""
    import os
    window(active=2, {NONE})
    steps(1)
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    else:
        fall(1)
        said(nvtx.mark, "here")
        os._exit(0)
    fall(0)
    steps(5)
    idle()
    assert before == (torchs.record_function.__enter__, torchs.record_function.__exit__)
    """
    run(tmp_path, NVTX + RANGES + dedent(script))
    assert [event["name"] for event in marks(tmp_path)] == ["decorated"]
