"""Code that torch compiles or exports, with the plugin and with marks."""

from __future__ import annotations

from typing import Any

import pytest

import dynprof as dp
import dynprof.mstx as mstx
from dynprof.marks import open_ranges
from tests.integration.plugin.marking import marked

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_a_module_is_exported_as_without_it() -> None:
    """Strict export does not see the plugin's wrapper of calls."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    exported = torch.export.export(model, (torch.ones(2, 4),), strict=True)
    assert exported.module()(torch.ones(2, 4)).shape == (2, 4)
    assert torch.nn.Module.__call__ == model.__call__.__func__
    assert len({torch.nn.Module.__call__, model.__call__.__func__}) == 1


def test_compiled_code_is_not_broken_by_it() -> None:
    """The plugin adds no graph break and no recompilation."""
    counters = torch._dynamo.utils.counters

    def compile_and_run() -> tuple[int, int, int]:
        torch._dynamo.reset()
        counters.clear()
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        fast = torch.compile(model, backend="aot_eager")
        for _ in range(3):
            fast(torch.ones(2, 4)).sum().backward()
        with mstx.subscribe(print):
            for _ in range(3):
                fast(torch.ones(2, 4)).sum().backward()
        stats = counters["stats"]
        return (
            sum(counters["graph_break"].values()),
            stats["unique_graphs"],
            stats["calls_captured"],
        )

    with_it = compile_and_run()
    dp.plugin.uninstall()
    assert with_it == compile_and_run()
    assert with_it[0] == 0


def with_pushes(model: Any, x: Any) -> Any:
    """Call a model between marks of all kinds."""
    mstx.mark("here")
    number = mstx.range_start("start")
    mstx.range_push("push")
    y = model(x)
    mstx.range_pop()
    mstx.range_end(number)
    return y


def with_blocks(model: Any, x: Any) -> Any:
    """Call it in ranges as blocks, and in the loop over an iterator."""
    for item in dp.phases.iterate([x, x]):
        with mstx.annotate("block"), dp.phase("forward"):
            y = model(item)
    return y


@mstx.annotate()
def decorated(model: Any, x: Any) -> Any:
    """Call it in a function with a range as decorator."""
    return model(x)


@pytest.mark.parametrize("function", [with_pushes, with_blocks, decorated])
@pytest.mark.parametrize("taken", [False, True])
def test_marks_inside_compiled_code_are_left_out(function: Any, taken: bool) -> None:
    """Marks cause no graph breaks and no new compilation, recorded or not."""
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    fast = torch.compile(function, backend="eager", fullgraph=True)

    def work() -> None:
        for _ in range(3):
            assert torch.equal(fast(model, x), model(x))

    if taken:
        assert set(marked(work)) == {"forward"}
    else:
        work()
    assert counters["stats"]["unique_graphs"] == 1
    assert not open_ranges.all_open()
