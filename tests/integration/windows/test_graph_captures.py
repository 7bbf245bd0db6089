"""While a graph is captured on any thread, no window opens or closes.

Not every machine has a GPU for graphs. The class used here has the methods of torch's class, and
notes calls that would break a capture.
"""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import events, manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

GRAPHS = """
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from torch.autograd import profiler as torchs

class Graph:
    capturing, broken = 0, []
    def capture_begin(self, pool=None, capture_error_mode="global"):
        Graph.capturing += 1
    def capture_end(self):
        Graph.capturing -= 1

GRAPH_CAPTURES.follow(Graph, "a graph")
def watched(name):
    torchs_own = getattr(torchs, name)
    def call(*args, **kwargs):
        if Graph.capturing:
            Graph.broken.append(name)
        return torchs_own(*args, **kwargs)
    setattr(torchs, name, call)
for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
    watched(name)

def capture_elsewhere():
    global over
    begun, over, graph = threading.Event(), threading.Event(), Graph()
    def capture():
        graph.capture_begin()
        begun.set()
        over.wait(60)
        graph.capture_end()
    thread = threading.Thread(target=capture, name="capturing", daemon=True)
    thread.start()
    begun.wait(60)
    return thread
"""


def test_a_window_waits_for_a_capture(tmp_path: Path) -> None:
    """A request waits; log and status name the thread that captures."""
    script = """
    thread = capture_elsewhere()
    window(active=2)
    steps(5)
    assert dp.status().state == "waiting"
    assert "is being captured on thread" in dp.status().edits[-1].text
    over.set()
    thread.join()
    steps(1)
    thread = capture_elsewhere()
    steps(5)
    assert dp.status().state == "recording"
    over.set()
    thread.join()
    steps(3)
    idle()
    assert Graph.broken == [], Graph.broken
    """
    log = run(tmp_path, GRAPHS + dedent(script), closing="inline")
    (manifest,) = manifests(tmp_path)
    who = "a graph is being captured on thread capturing"
    assert f"request 1: waits, {who}" in log
    joined = rf"step (\d+) is counted with step \d+: {who}; the manifest names all such steps\n"
    assert len(re.findall(joined, log)) == 1
    assert any("the window waited until step" in note and who in note for note in manifest.remarks)
    assert manifest.complete
    assert manifest.steps.recorded == 2


def test_a_start_step_that_is_in_a_capture(tmp_path: Path) -> None:
    """A window whose start step is in a capture opens after it, and is not late."""
    script = """
    thread = capture_elsewhere()
    window(active=2, start_step=4)
    steps(8)
    over.set()
    thread.join()
    steps(4)
    idle()
    """
    run(tmp_path, GRAPHS + dedent(script))
    (manifest,) = manifests(tmp_path)
    assert manifest.complete
    assert manifest.steps.first > 4


def test_a_profile_of_the_script(tmp_path: Path) -> None:
    """A profile records during a capture; stop() takes effect at the capture's end."""
    script = """
    import warnings
    from dynprof.profiler import profile, schedule
    warnings.simplefilter("ignore")
    stopped = []
    with profile(activities=["CPU"], schedule=schedule(wait=0, warmup=0, active=2, repeat=1),
                 on_trace_ready=lambda p: p.export_chrome_trace("scheduled.json")) as mine:
        for number in range(6):
            graph = Graph()
            if number == 1:
                graph.capture_begin()
            work()
            mine.step()
            if number == 1:
                assert mine.step_num == 1
                graph.capture_end()
    assert mine.step_num == 5
    mine = profile(activities=["CPU"], on_trace_ready=lambda p: stopped.append(p))
    mine.start()
    graph = Graph()
    graph.capture_begin()
    torch.ones(2).mul(3)
    mine.stop()
    torch.ones(2).div(3)
    assert not stopped
    graph.capture_end()
    assert stopped
    mine.export_chrome_trace("stopped.json")
    assert Graph.broken == [], Graph.broken
    """
    run(tmp_path, GRAPHS + dedent(script))
    assert "ProfilerStep#1" in (tmp_path / "scheduled.json").read_text()
    trace = (tmp_path / "stopped.json").read_text()
    assert "aten::mul" in trace
    assert "aten::div" in trace


def test_acl_neither_starts_nor_stops_in_a_capture(tmp_path: Path) -> None:
    """During a capture acl.prof.start() fails, and stop() saves the trace after it."""
    script = """
    import warnings
    from dynprof import acl
    from dynprof.errors import BackendError
    warnings.simplefilter("ignore")
    acl.init()
    acl.prof.init("out")
    config = acl.prof.create_config([0])
    with dp.graph_capture(), warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said to be recorded
        try:
            acl.prof.start(config)
        except BackendError as error:
            assert "cannot start: a graph is being captured" in str(error), error
        else:
            raise AssertionError("started in a capture")
    acl.prof.start(config)
    graph = Graph()
    graph.capture_begin()
    work()
    acl.prof.stop(config)
    found = lambda: list(Path("out").rglob("*.trace.json*"))
    assert not found()
    graph.capture_end()
    assert len(found()) == 1
    assert Graph.broken == [], Graph.broken
    """
    run(tmp_path, GRAPHS + dedent(script))


def test_a_stop_that_times_out_in_a_capture_can_be_repeated(tmp_path: Path) -> None:
    """While another thread captures, stop() is an error, and a later one saves all."""
    script = """
    import warnings
    from dynprof import acl
    from dynprof.errors import BackendError
    from dynprof.runtime import graph_captures
    from dynprof.profiler import profile
    warnings.simplefilter("ignore")
    graph_captures.WAIT_S = 0.01
    config = acl.prof.create_config([0])
    def cannot_stop(stop):
        thread = capture_elsewhere()
        try:
            stop()
        except BackendError as error:
            assert "cannot stop: a graph is being captured on thread capturing" in str(error), error
        else:
            raise AssertionError("stopped in a capture")
        torch.ones(2).div(3)
        over.set()
        thread.join()
        stop()
    acl.init()
    acl.prof.init("out")
    acl.prof.start(config)
    cannot_stop(lambda: acl.prof.stop(config))
    acl.prof.finalize()
    assert len(list(Path("out").rglob("*.trace.json*"))) == 1
    mine = profile(activities=["CPU"], strict=True)
    mine.start()
    cannot_stop(mine.stop)
    mine.export_chrome_trace("stopped.json")
    assert Graph.broken == [], Graph.broken
    """
    run(tmp_path, GRAPHS + dedent(script))
    assert "aten::div" in (tmp_path / "stopped.json").read_text()


def test_a_script_that_stops_a_window_in_a_capture(tmp_path: Path) -> None:
    """dp.stop() takes effect at the next step after the capture."""
    script = """
    window(active=50)
    steps(3)
    with dp.graph_capture():
        dp.stop()
        steps(1)
        assert dp.status().state == "recording"
    steps(1)
    idle()
    """
    run(tmp_path, GRAPHS + dedent(script))
    (manifest,) = manifests(tmp_path)
    names = {event.get("name") for event in events(tmp_path, manifest)}
    assert "aten::add" in names
    assert not manifest.complete


@pytest.mark.parametrize("ends", [True, False])
def test_a_process_that_ends_while_another_thread_captures(tmp_path: Path, *, ends: bool) -> None:
    """The process waits briefly for the capture, and saves the window in any case."""
    script = f"""
    window(active=50)
    steps(3)
    thread = capture_elsewhere()
    if {ends}:
        threading.Timer(0.5, over.set).start()
        import atexit
        atexit.register(lambda: Path("broken").write_text(str(Graph.broken)))
    dp.dynamic_profile._end_at_exit()
    """
    run(tmp_path, GRAPHS + dedent(script), closing="inline")
    (manifest,) = manifests(tmp_path)
    assert manifest.trace
    assert not ends or (tmp_path / "broken").read_text() == "[]"


def test_a_shutdown_in_a_capture(tmp_path: Path) -> None:
    """The window is discarded, as its manifest says, and its profiler ends with the process."""
    script = """
    window(active=50)
    steps(3)
    graph = Graph()
    graph.capture_begin()
    dp.shutdown()
    assert Graph.broken == [], Graph.broken
    """
    run(tmp_path, GRAPHS + dedent(script), closing="inline")
    (manifest,) = manifests(tmp_path)
    assert "but a graph is being captured on thread MainThread" in manifest.reason


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_graph_of_a_gpu(tmp_path: Path, mode: str) -> None:
    """A graph is captured during requests; each replay is in its step."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    script = f"""
    dp.graph_capture  # the class of graphs is followed since init()
    x, y = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    graph, begun, over = torch.cuda.CUDAGraph(), threading.Event(), threading.Event()
    def capture():
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="{mode}"):
            y.copy_(x.mul(3))
            begun.set()
            over.wait(60)
    Path("asked.json").write_text(json.dumps({{"active": 3, "activities": ["CPU", "CUDA"]}}))
    thread = threading.Thread(target=capture, name="capturing")
    thread.start()
    begun.wait(60)
    dp.start("asked.json")
    for _ in range(5):
        dp.step()
    assert dp.status().state == "waiting", dp.status()
    over.set()
    thread.join()
    for _ in range(6):
        graph.replay()
        dp.step()
    idle()
    torch.cuda.synchronize()
    assert y.tolist() == [3.0] * 8
    """
    log = run(tmp_path, "import json" + dedent(script))
    assert "is being captured on thread capturing" in log
    (manifest,) = manifests(tmp_path)
    assert manifest.complete
    found = events(tmp_path, manifest)
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in found
        if e.get("cat") == "user_annotation" and str(e["name"]).startswith("ProfilerStep#")
    )
    launches = [e["ts"] for e in found if e.get("name") == "cudaGraphLaunch"]
    assert [sum(a <= ts < b for ts in launches) for a, b in steps] == [1, 1, 1]
