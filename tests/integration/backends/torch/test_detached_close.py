"""The detached close records what the inline one records, while the training continues."""

from __future__ import annotations

import json
import re
import textwrap
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.backends.torch import closing
from dynprof.backends.torch.backend import TorchBackend
from dynprof.backends.torch.detached_close_selftest import (
    SELF_TEST,
    UNFINISHED,
    SelfTest,
    what_is_missing,
)
from tests.integration.backends.plans import RANK, a_plan, no_folder
from tests.integration.running import TORCH_JOB, RunningJob, wait_for

torch = pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def train_one_step() -> Callable[[], None]:
    """Return a seeded training step after its warm-up."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 2, dim_feedforward=64, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(4, 8, 32)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    return step


def capture(
    how: str, step: Callable[[], None], path: Path, monkeypatch: pytest.MonkeyPatch, **config: Any
) -> list[dict[str, Any]]:
    """Record three steps, close in one way, and return the events."""
    monkeypatch.setenv("DYNPROF_CLOSE", how)
    backend = TorchBackend()
    backend.capabilities()
    wait_for("the self-test", lambda: SELF_TEST.answer)
    recording = backend.prepare(a_plan(backend, **config), RANK, no_folder)
    recording.start()
    for number in range(3):
        recording.begin_step(number)
        step()
    recording.close()
    assert recording.closing.startswith(how)
    recording.save(path)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


@pytest.mark.parametrize(
    "config",
    [
        {"record_shapes": True, "profile_memory": True, "with_flops": True},
        {"with_stack": True, "with_modules": True},
    ],
    ids=["shapes and memory", "stacks"],
)
def test_detached_and_inline_close_record_the_same(
    train_one_step: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
) -> None:
    """Counts by category and name, links, annotations and the operators' arguments are equal."""
    traces = {
        how: capture(how, train_one_step, tmp_path / how, monkeypatch, **config)
        for how in ("inline", "inline", "detached")  # the first teaches torch's memory reporter
    }
    counts = {how: by_category(events) for how, events in traces.items()}
    assert counts["detached"] == counts["inline"]
    assert counts["inline"]["cpu_op"] > 500
    assert counts["inline"]["fwdbwd"] > 0
    args = {how: operator_args(events) for how, events in traces.items()}
    assert args["detached"] == args["inline"]


def by_category(events: list[dict[str, Any]]) -> Counter[str]:
    """Count events, without the names of processes and threads.

    The collector's thread appears in only one of them. Python frames differ by a few between runs,
    so they only have to exist.
    """
    found = Counter(str(event.get("cat")) for event in events if event["ph"] != "M")
    found["python_function"] = int(found["python_function"] > 100)
    return found


def operator_args(events: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return names and arguments of the operators in order of time, without running counters."""
    operators = sorted((e for e in events if e.get("cat") == "cpu_op"), key=lambda e: e["ts"])
    counting = re.compile("External id|Sequence number|Record function id|Ev Idx|Python|Fwd")
    return [
        (e["name"], {k: v for k, v in e["args"].items() if not counting.match(k)})
        for e in operators
    ]


JOB = (
    TORCH_JOB
    + """
dp.init("prof_config")
while True:
    train_one_step()
    time.sleep(0.001)
    dp.step()
"""
)


def test_a_job_closes_detached_and_says_so(tmp_path: Path) -> None:
    """After the self-test, log and manifest say detached, and closing takes no time."""
    SELF_TEST.begin()
    wait_for("the self-test", lambda: SELF_TEST.answer)
    with RunningJob(tmp_path, JOB) as job:
        job.when("training", lambda status: status.state == "idle")
        for number in (1, 2):
            job.edit(active=5, with_stack=True)
            manifest, trace = job.capture(number)
            assert manifest.complete
            assert trace["traceEvents"]
        assert manifest.closing == "detached"
        assert "ms (detached), 5 of 5 steps" in job.log()


def test_the_detached_close_can_be_switched_off(tmp_path: Path) -> None:
    """``DYNPROF_CLOSE=inline`` closes inline, and the log says so."""
    with RunningJob(tmp_path, JOB, DYNPROF_CLOSE="inline") as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=2)
        manifest, _ = job.capture()
        assert manifest.closing == "inline: DYNPROF_CLOSE=inline"


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "still running"), ("its self-test ended with code -11: no output", "code -11")],
)
def test_without_a_passed_self_test_windows_close_inline(
    monkeypatch: pytest.MonkeyPatch, answer: str | None, words: str
) -> None:
    """A build whose self-test crashed, or has not answered, closes inline."""
    monkeypatch.delenv("DYNPROF_CLOSE", raising=False)
    asked = SelfTest()
    asked.answer = answer
    monkeypatch.setattr(closing, "SELF_TEST", asked)
    functions, how = closing.choose_close(("CPU",))
    assert functions is None
    assert words in how


def test_the_detached_close_is_not_the_default_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The detached close was tried on one device only; a user may switch it on."""
    monkeypatch.delenv("DYNPROF_CLOSE", raising=False)
    functions, how = closing.choose_close(("CPU", "CUDA"))
    assert functions is None
    assert "needs DYNPROF_CLOSE=detached" in how


def test_many_windows_leave_nothing_in_memory(tmp_path: Path) -> None:
    """The allocations of 4 windows with stacks are freed, always with the GIL.

    Python's debug allocator ends the process at a call without the lock.
    """
    many = """
    import ctypes, gc, json, pathlib
    from dynprof.backends.torch.closing import COLLECTOR
    from dynprof.backends.torch.detached_close_selftest import SELF_TEST
    SIZES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in SIZES.split()]
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Info
    def in_use():
        COLLECTOR.begin(lambda: None).result()  # it has let go of all that it did before
        gc.collect()
        info = mallinfo()
        return info.uordblks + info.hblkhd
    dp.init("prof_config")
    while SELF_TEST.answer is None:
        time.sleep(0.01)
    path = pathlib.Path("asked.json")
    path.write_text(json.dumps({"active": 3, "with_stack": True, "activities": ["CPU"]}))
    def window():
        dp.start(path)
        saved = dp.status().last_capture
        while dp.status().last_capture == saved:
            train_one_step()
            dp.step()
    for _ in range(2):
        window()
    before = in_use()
    for _ in range(4):
        window()
    print(in_use() - before)
    """
    with RunningJob(tmp_path, TORCH_JOB + textwrap.dedent(many), PYTHONMALLOC="debug") as job:
        grown = int(job.end())
        assert "(detached)" in job.log()
        assert "(inline" not in job.log()
    assert grown < 260_000  # 133 kB a window leaked while its state was not freed


def test_the_collector_is_one_thread() -> None:
    """Two threads would use libkineto at the same time."""
    collector = closing.LowPriorityThread()
    ready, served = threading.Barrier(8), set[int]()

    def ask() -> None:
        ready.wait()
        collector.begin(lambda: served.add(threading.get_ident())).result()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    before = threading.active_count()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served) == 1
    assert threading.active_count() <= before + 1


@pytest.mark.parametrize("missing", ["operators", "shapes", "steps", "ended"])
def test_the_self_test_fails_on_an_incomplete_trace(tmp_path: Path, missing: str) -> None:
    """A trace without operators, shapes, steps, or an unfinished operator fails the self-test."""
    products: list[dict[str, Any]] = [
        {"name": "aten::mm", "cat": "cpu_op", "args": {"Input Dims": [[4, 5], [5, 6]]}}
        for _ in range(3)
    ]
    marks: list[dict[str, Any]] = [{"name": f"ProfilerStep#{n}"} for n in range(3)] + [
        {"name": "[memory]"},
        {"name": UNFINISHED, "args": {"finished": False}},
    ]
    events = products + marks
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert what_is_missing(path) == ""
    if missing == "operators":
        events = products[:1] + marks
    elif missing == "shapes":
        events = [{**product, "args": {}} for product in products] + marks
    elif missing == "ended":
        events = products + marks[:-1]
    else:
        events = products
    path.write_text(json.dumps({"traceEvents": events}))
    assert missing in what_is_missing(path)
