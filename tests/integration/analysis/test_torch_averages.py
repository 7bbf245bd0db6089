"""Times where labels cross, and recomputation, compared with torch's own of the same run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.phase_times import recomputed
from dynprof.analysis.reading.spans import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.usefixtures("own_place")


def work() -> Any:
    """Run some operators."""
    return torch.ones(64, 64) @ torch.ones(64, 64)


def serve_requests() -> None:
    """Serve three requests on one thread; each waits inside its label, while others run."""

    async def request(number: int) -> None:
        with torch.profiler.record_function(f"request {number}"):
            work()
            await asyncio.sleep(0.001 * (number + 1))
            work()

    async def serve() -> None:
        await asyncio.gather(*(request(number) for number in range(3)))

    asyncio.run(serve())


def dispatch_in_a_mode() -> None:
    """Run operators in a dispatch mode, whose labels cross the operators."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    with Mode(), torch.profiler.record_function("block"):
        work()


def hold_labels_open() -> None:
    """Close the first of two labels first, inside a third one."""
    with torch.profiler.record_function("outer"):
        one, other = (torch.profiler.record_function(name) for name in ("one", "other"))
        one.__enter__()
        work()
        other.__enter__()
        work()
        one.__exit__(None, None, None)
        work()
        other.__exit__(None, None, None)


def ns(microseconds: float) -> int:
    """Return whole nanoseconds."""
    return round(1000 * microseconds)


@pytest.mark.parametrize("run", [serve_requests, dispatch_in_a_mode, hold_labels_open])
def test_self_times_are_torchs_where_labels_cross(tmp_path: Path, run: Callable[[], None]) -> None:
    """By name, self and total; self times add up to the total, and no row of modules nests them."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        run()
    path = tmp_path / "a.pt.trace.json"
    prof.export_chrome_trace(str(path))
    measured = MeasuredTrace(path)
    ours = {row.name: (row.count, row.self_ns, row.total_ns) for row in measured.averages}
    torchs = {
        row.key: (row.count, ns(row.self_cpu_time_total), ns(row.cpu_time_total))
        for row in prof.key_averages()
    }
    assert ours == torchs
    found = measured.operators
    assert found.self_ns.sum() == found.total_ns[found.parent == ROOT].sum()
    rows = measured.modules.rows
    crossing = [row.parent for row in rows if row.name.startswith(("request", "one", "other"))]
    outside = ROOT if run is serve_requests else 0
    assert crossing == [outside] * len(crossing)


@pytest.mark.parametrize("with_stack", [True, False])
@pytest.mark.parametrize("use_reentrant", [True, False, None])
def test_recomputation_of_torchs_checkpoint(
    tmp_path: Path, *, use_reentrant: bool | None, with_stack: bool
) -> None:
    """Each linear layer under a checkpoint runs twice; without checkpoints none does."""
    from torch.utils.checkpoint import checkpoint

    layers = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(3)
    )

    def run() -> None:
        value = torch.ones(8, 8, requires_grad=True)
        for layer in layers:
            if use_reentrant is None:
                value = layer(value)
            else:
                value = checkpoint(layer, value, use_reentrant=use_reentrant)
        value.sum().backward()

    run()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, with_stack=with_stack) as prof:
        run()
    prof.export_chrome_trace(str(tmp_path / "a.pt.trace.json"))
    measured = MeasuredTrace(tmp_path / "a.pt.trace.json")
    chosen = recomputed(measured.trace)
    names = [measured.trace.name(place) for place in chosen.nonzero()[0].tolist()]
    again = 0 if use_reentrant is None else 3
    events = [event for event in prof.events() if event.name == "aten::addmm"]
    assert len(events) == 3 + again
    assert names.count("aten::addmm") == names.count("aten::relu") == again
    assert (measured.phases[0]["recomputation"] > 0) is bool(again)
    calls = {row.name: row.calls for row in measured.modules.rows if row.parent == ROOT}
    assert calls.get("recomputation", 0) == again


def test_a_gradients_gradient_is_not_recomputed(tmp_path: Path) -> None:
    """With create_graph=True the gradient's own operators have sequence numbers."""
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    value = torch.ones(8, 8, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        (slope,) = torch.autograd.grad(layer(value).sum(), value, create_graph=True)
        slope.square().sum().backward()
    prof.export_chrome_trace(str(tmp_path / "a.pt.trace.json"))
    assert not recomputed(MeasuredTrace(tmp_path / "a.pt.trace.json").trace).any()
