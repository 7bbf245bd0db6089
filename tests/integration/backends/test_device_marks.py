"""Marks on a stream: Kineto's view on a GPU if there is one, and the host's part anywhere.

``python -m benchmarks.device cuda`` runs them on a machine with a GPU.
"""

from __future__ import annotations

import json
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.backends.collectors.marks import NO_DEVICE
from dynprof.backends.torch import collectors
from dynprof.backends.torch.collectors import LABEL, CudaStreams, draw
from tests.integration.scripts import events, manifests, run

torch = pytest.importorskip("torch", reason="torch is not installed")
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU is here: what a device draws cannot be seen"
)

if TYPE_CHECKING:
    from pathlib import Path


def on_track(found: list[dict[str, Any]], stream: int) -> list[str]:
    """Return the events on a stream's track, in the order of their start."""
    wanted = [e for e in found if e.get("cat") in ("kernel", "gpu_user_annotation")]
    mine = [e for e in wanted if e["tid"] == stream and e["ph"] == "X"]
    return [e["name"] for e in sorted(mine, key=lambda e: (e["ts"], -e["dur"]))]


@needs_gpu
@pytest.mark.parametrize("given", ["stream", "stream.cuda_stream"])
def test_a_mark_is_between_the_kernels_around_it(tmp_path: Path, given: str) -> None:
    """A mark on a stream is between the kernels around it, and on no other stream."""
    script = f"""
    import dynprof.mstx as mstx
    stream = torch.cuda.Stream()
    x = torch.ones(1000, 1000, device="cuda")
    torch.cuda.synchronize()
    window(active=2, activities=["CPU", "CUDA"], experimental_config={{"mstx": True}})
    steps(1)
    with torch.cuda.stream(stream):
        x.sin()
        mstx.mark("between", {given})
        x.cos()
        number = mstx.range_start("range", {given})
        x.tan()
        mstx.range_end(number)
    steps(5)
    idle()
    window(active=2, activities=["CPU", "CUDA"], experimental_config={{"mstx": True}})
    steps(1)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x + 1
        mstx.mark("captured", torch.cuda.current_stream())
    steps(5)
    idle()
    """
    run(tmp_path, dedent(script), closing="inline")
    first, second = manifests(tmp_path)
    found = events(tmp_path, first)
    (mark,) = [e for e in found if e.get("cat") == "gpu_user_annotation" and e["name"] == "between"]
    track = on_track(found, mark["tid"])
    drawn = [name for name in track if name in ("between", "range (begin)", "range (end)")]
    assert drawn == ["between", "range (begin)", "range (end)"]
    works = [next((w for w in ("sin", "cos", "tan") if f"{w}_" in n), n) for n in track]
    order = [name for name in works if name in ("sin", "cos", "tan", *drawn)]
    assert order == ["sin", "between", "cos", "range (begin)", "tan", "range (end)"]
    (path,) = (tmp_path / "prof_config").rglob(str(first.trace))
    assert "aten::zero_" not in {average.name for average in MeasuredTrace(path).work}
    assert "captured" not in [e["name"] for e in events(tmp_path, second) if e.get("cat") != "mstx"]


def test_the_host_part_of_a_device_mark_is_not_work(tmp_path: Path) -> None:
    """In a real trace the script's ``zero_`` counts as work, and that of a mark does not."""
    x = torch.ones(10)
    with torch.profiler.profile() as profiler:
        x.zero_()
        draw("upload", lambda: torch.zeros(1))
        x.add_(1)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    written = (tmp_path / "trace.json").read_text()
    names = [event["name"] for event in json.loads(written)["traceEvents"]]
    assert (names.count("upload"), names.count(LABEL)) == (1, 1)
    assert names.count("aten::zero_") == 3
    found = {average.name: average.count for average in MeasuredTrace(tmp_path / "trace.json").work}
    assert found["aten::zero_"] == found["aten::add_"] == 1
    assert not {"upload", LABEL} & set(found)


def test_log_says_once_that_a_mark_has_no_device(tmp_path: Path) -> None:
    """The log says it once for many windows and marks; the marks are on the host."""
    script = """
    import dynprof.mstx as mstx
    for _ in range(2):
        window(active=2, experimental_config={"mstx": True})
        steps(1)
        mstx.mark("here", 1 << 40)
        with mstx.annotate("range", 1 << 40):
            work()
        steps(5)
        idle()
    """
    log = run(tmp_path, dedent(script))
    assert log.count(NO_DEVICE) == 1
    for manifest in manifests(tmp_path):
        found = [e["name"] for e in events(tmp_path, manifest) if e.get("cat") == "mstx"]
        assert sorted(found) == ["here", "range"]


def test_values_that_are_no_cuda_stream_give_none() -> None:
    """Handles before CUDA has started here, and numbers that cannot be pointers, give None."""
    streams = CudaStreams()
    for given in (True, -1, 17, "7", 1.5, object()):
        assert streams.stream(given) is None
    if not torch.cuda.is_initialized():
        assert streams.stream(1 << 40) is None
    assert [number for number in (1, 2, 3, 4095, 4096) if collectors._is_handle(number)] == [
        1, 2, 4096,
    ]  # fmt: skip
