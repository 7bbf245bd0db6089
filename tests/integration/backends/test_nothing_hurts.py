"""Former crashes, hangs and leaks of a job: each runs in its own process, which must end well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.requests.capabilities import inline_close
from tests.integration.scripts import TUNABLES, events, manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


LONG_OPERATOR = """
        inside, leave = threading.Event(), threading.Event()
        def long_operator():
            with torch._C._profiler._RecordFunctionFast("long"):
                inside.set()
                leave.wait()
"""


def test_an_operator_that_outlives_its_window(tmp_path: Path) -> None:
    """No window records this thread until the operator has ended: it would write to a past one."""
    run(
        tmp_path,
        LONG_OPERATOR
        + """
        def windows():
            window(active=3)
            steps(4)
            idle()
        thread = threading.Thread(target=long_operator)
        window(active=3)
        steps(1)
        thread.start()
        inside.wait()
        steps(3)
        idle()
        windows()
        task = Path("/proc/self/task", str(thread.native_id))
        leave.set()
        thread.join()
        while task.exists():  # join() does not wait for the system's own thread
            time.sleep(0.001)
        windows()
        """,
        GLIBC_TUNABLES=TUNABLES,
    )
    first, second, third = manifests(tmp_path)
    assert [first.closing, third.closing] == ["detached", "detached"]
    why = "recorded: an operator that began in an earlier window may not have ended on thread "
    assert [m.remarks for m in (first, third)] == [(), ()]
    (remark,) = second.remarks
    assert f"only the thread that opens the window is {why}" in remark
    assert all(manifest.complete for manifest in (first, second, third))
    unfinished = [e["name"] for e in events(tmp_path, first) if "finished" in e.get("args", {})]
    assert unfinished == ["long"]


def test_an_operator_that_outlives_a_lost_window(tmp_path: Path) -> None:
    """A lost trace cannot tell which threads were in an operator, so any thread may have been."""
    run(
        tmp_path,
        LONG_OPERATOR
        + """
        thread = threading.Thread(target=long_operator)
        window(active=30)
        steps(1)
        thread.start()
        inside.wait()
        steps(3)
        from dynprof.windows.window import Window
        end_step, Window.end_step = Window.end_step, None
        steps(1)
        Window.end_step = end_step
        idle()
        window(active=3)
        steps(4)
        leave.set()
        thread.join()
        steps(4)
        idle()
        """,
        GLIBC_TUNABLES=TUNABLES,
    )
    told = [manifest for manifest in manifests(tmp_path) if manifest.complete]
    (remarks,) = [manifest.remarks for manifest in told]
    assert "only the thread that opens" in remarks[-1]


@pytest.mark.parametrize(("closing", "memory"), [("detached", False), ("inline", True)])
def test_a_window_discarded_in_its_warm_up_records_nothing(
    tmp_path: Path, closing: str, memory: bool
) -> None:
    """Torch has to start what it ends: dynprof starts it without calls, shapes, other threads."""
    run(
        tmp_path,
        f"""
        from torch.autograd.profiler import profile as plain
        begun, start = [], plain._start_trace
        def starting(self):
            start(self)
            everywhere = torch.autograd.profiler._is_profiler_enabled and records_all_threads()
            begun.append((self.with_stack, self.profile_memory, self.record_shapes, everywhere))
        from dynprof.backends.torch.closing import records_all_threads
        plain._start_trace = starting
        window(active=3, warmup=30, with_stack=True, record_shapes=True, profile_memory={memory})
        steps(3)
        assert dp.status().state == "warmup"
        dp.stop()
        steps(1)
        idle()
        assert begun == [(False, False, False, False)], begun
        begun.clear()
        window(active=3, with_stack=True, record_shapes=True, profile_memory={memory})
        steps(4)
        idle()
        assert begun == [(True, {memory}, True, not {memory})], begun
        """,
        closing,
    )
    assert [manifest.complete for manifest in manifests(tmp_path)] == [False, True]


@pytest.mark.parametrize("memory", [False, True])
def test_annotations_across_windows(tmp_path: Path, memory: bool) -> None:
    """Ranges that begin in one window and end in a later one are cut at the first one's end."""
    run(
        tmp_path,
        f"""
        def annotated(label):
            annotation = torch.profiler.record_function(label)
            annotation.__enter__()
            return annotation
        original = torch.profiler.record_function.__enter__
        open_ones = []
        for number in range(6):
            window(active=30, profile_memory={memory})
            while dp.status().state != "recording":
                steps(1)
            for old in open_ones[:-1]:
                old.__exit__(None, None, None)
            open_ones = open_ones[-1:] + [annotated(f"epoch {{number}} {{n}}") for n in range(50)]
            at_once(2, lambda: open_ones.append(annotated("of another thread")))
            steps(40)
            idle()
        assert torch.profiler.record_function.__enter__ is original
        """,
        GLIBC_TUNABLES=TUNABLES,
    )
    found = manifests(tmp_path)
    assert [manifest.complete for manifest in found] == [True] * 6
    ranges = [event for event in events(tmp_path, found[2]) if event["name"].startswith("epoch")]
    names = [event["name"] for event in ranges]
    assert names.count("epoch 2 7") == 1
    assert not any(name.startswith("epoch 1") for name in names)
    assert all(event["args"].get("finished", True) for event in ranges)


@pytest.mark.parametrize("memory", [False, True])
def test_annotations_that_end_with_a_future_across_windows(tmp_path: Path, memory: bool) -> None:
    """A range that ends in a later window by a future is cut at the end of the first one."""
    run(
        tmp_path,
        f"""
        def promised(label):
            future = torch.futures.Future()
            with torch.profiler.record_function(label) as annotation:
                annotation._call_end_callbacks_on_future(future)
            return future
        promises = []
        for number in range(4):
            window(active=30, profile_memory={memory})
            while dp.status().state != "recording":
                steps(1)
            for future in promises[:-1]:
                future.set_result(None)
            promises = promises[-1:] + [promised(f"{{number}} {{n}}") for n in range(200)]
            steps(40)
            idle()
        """,
        GLIBC_TUNABLES=TUNABLES,
    )
    found = manifests(tmp_path)
    assert [manifest.complete for manifest in found] == [True] * 4
    names = [event["name"] for event in events(tmp_path, found[2])]
    assert names.count("2 7") == 1
    assert not any(name.startswith("1 ") for name in names)


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_window_closes_inline_if_memory_is_low(tmp_path: Path, limit: str) -> None:
    """A thread without memory would abort the process, so dynprof starts none."""
    run(
        tmp_path,
        f"""
        import resource
        limit = 64 << 30
        resource.setrlimit(resource.{limit}, (limit, limit))
        window(active=2)
        steps(3)
        idle()
        """,
        closing="",
    )
    (manifest,) = manifests(tmp_path)
    (remark,) = manifest.remarks
    assert remark == inline_close(f"the process's memory is limited ({limit})")
