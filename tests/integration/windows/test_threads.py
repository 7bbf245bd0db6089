"""Steps of several threads, and windows whose own thread ends, waits or runs an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import events, manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


def test_steps_of_several_threads(tmp_path: Path) -> None:
    """The manifest's steps are those in the trace, with the operators of all threads."""
    run(
        tmp_path,
        """
        stop = threading.Event()
        def serve():
            while not stop.is_set():
                work()
                time.sleep(0.001)
                dp.step()
        threads = [threading.Thread(target=serve) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            window(active=12)
            time.sleep(0.2)
            idle()
        stop.set()
        for thread in threads:
            thread.join()
        """,
    )
    found = manifests(tmp_path)
    assert len(found) == 4
    for manifest in found:
        seen = events(tmp_path, manifest)
        steps = [int(e["name"][13:]) for e in seen if e["name"].startswith("ProfilerStep#")]
        assert sorted(steps) == list(range(manifest.steps.first, manifest.steps.last + 1))
        assert len(steps) == manifest.steps.recorded == 12
        assert any("several threads" in remark for remark in manifest.remarks)
        assert len({e["tid"] for e in seen if e.get("cat") == "cpu_op"}) > 1


@pytest.mark.parametrize("with_stack", [False, True])
def test_a_thread_for_each_request(tmp_path: Path, *, with_stack: bool) -> None:
    """A window outlives the thread that opened it, and counts each thread's one step.

    The system reuses thread numbers, also those of threads whose calls were traced.
    """
    run(
        tmp_path,
        f"""
        def request():
            work()
            dp.step()
        window_of = threading.Thread(target=lambda: window(active=5, with_stack={with_stack}))
        window_of.start()
        window_of.join()
        for _ in range(9):
            at_once(1, request)
        """,
    )
    (manifest,) = manifests(tmp_path)
    assert manifest.complete
    seen = events(tmp_path, manifest)
    assert sum(event["name"].startswith("ProfilerStep#") for event in seen) == 5
    assert len({event["tid"] for event in seen if event["name"] == "aten::add"}) == 5


def test_a_step_that_ends_while_a_window_opens_is_not_recorded(tmp_path: Path) -> None:
    """Threads that end a step during the opening wait for it; their steps are not counted."""
    run(
        tmp_path,
        """
        from dynprof.backends.torch.backend import TorchBackend
        prepare, others = TorchBackend.prepare, []
        def slow(*args):
            for _ in range(3):
                others.append(threading.Thread(target=steps, args=(1,)))
                others[-1].start()
            while dp.status().step < 4:
                time.sleep(0.001)
            return prepare(*args)
        TorchBackend.prepare = slow
        steps(1)
        window(active=5)
        for thread in others:
            thread.join()
        steps(5)
        """,
    )
    (manifest,) = manifests(tmp_path)
    seen = events(tmp_path, manifest)
    assert sum(e["name"] == "aten::add" for e in seen) == manifest.steps.recorded == 5


def test_memory_of_one_thread_among_several(tmp_path: Path) -> None:
    """If only one thread can be recorded, the manifest names the recorded steps."""
    run(
        tmp_path,
        """
        turn = threading.Barrier(2)
        def others():
            for _ in range(12):
                turn.wait()
                dp.step()
                turn.wait()
        thread = threading.Thread(target=others)
        thread.start()
        window(active=4, profile_memory=True)
        for _ in range(12):
            turn.wait()
            turn.wait()
            steps(1)
        thread.join()
        """,
    )
    (manifest,) = manifests(tmp_path)
    seen = events(tmp_path, manifest)
    steps = sorted(int(e["name"][13:]) for e in seen if e["name"].startswith("ProfilerStep#"))
    assert len(steps) == manifest.steps.recorded == 4
    assert (manifest.steps.first, manifest.steps.last) == (steps[0], steps[-1])
    assert steps == [0, 2, 4, 6]
    assert f"the recorded steps are {', '.join(map(str, steps))}" in manifest.remarks


def test_a_window_whose_thread_ends_no_more_steps(tmp_path: Path) -> None:
    """The window is discarded at a timeout while other threads continue; its reason says why."""
    log = run(
        tmp_path,
        """
        from dynprof.windows import early_close
        early_close.NO_STEP_S = 0.2
        opened, over = threading.Event(), threading.Event()
        def idle_worker():
            window(active=1000, profile_memory=True)
            steps(2)
            opened.set()
            over.wait()
        thread = threading.Thread(target=idle_worker)
        thread.start()
        opened.wait()
        while dp.status().state == "recording":
            steps(1)
            time.sleep(0.001)
        over.set()
        thread.join()
        steps(1)
        idle()
        window(active=2)
        at_once(2, lambda: steps(1))
        """,
    )
    first, second = manifests(tmp_path)
    assert "the thread that it was opened on has ended no step for 0.2 s, while" in first.reason
    assert "without profile_memory all are recorded" in first.reason
    assert second.complete
    assert "steps of other threads are not recorded: the window is bound to one thread" in log


@pytest.mark.parametrize("stacks", [False, True])
def test_threads_that_end_with_a_window_of_their_own(tmp_path: Path, stacks: bool) -> None:
    """A window bound to an ended thread does no harm and is released; the next one is whole."""
    log = run(
        tmp_path,
        f"""
        def short():
            window(active=10**6, profile_memory=True, with_stack={stacks})
            while dp.status().state != "recording":
                steps(1)
        for _ in range(2):
            at_once(1, short)
            work()
            steps(1)
            idle()
        at_once(1, short)
        """,
    )
    assert "the thread that it was opened on has ended" in log
    assert len(manifests(tmp_path)) == 3


def test_a_window_whose_thread_takes_no_more_steps_delays_the_next_briefly(tmp_path: Path) -> None:
    """Discarded on another thread, it delays the next window briefly, and harms neither."""
    run(
        tmp_path,
        """
        from dynprof.windows import driver
        driver.WAIT_S = 0.2
        opened, again, over = threading.Event(), threading.Event(), threading.Event()
        def away():
            window(active=1000, profile_memory=True)
            steps(2)
            opened.set()
            again.wait()
            steps(2)
            assert not torch.autograd._profiler_enabled()
        thread = threading.Thread(target=away)
        thread.start()
        opened.wait()
        dp.stop()
        steps(1)
        window(active=2)
        while dp.status().state != "recording":
            steps(1)
        steps(1)
        again.set()
        thread.join()
        steps(3)
        idle()
        window(active=2)
        steps(3)
        """,
    )
    assert [manifest.complete for manifest in manifests(tmp_path)] == [False, True, True]


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_steps_inside_a_backward_pass(tmp_path: Path, memory: bool, closing: str) -> None:
    """Windows of all threads open or close there; those of one thread wait for a step outside.

    So do windows that torch collects inline: the operators around the step have not ended.
    """
    waits = memory or closing == "inline"
    log = run(
        tmp_path,
        f"""
        weight = torch.ones(4, 4, requires_grad=True)
        def in_backward(*before):
            loss = (weight @ weight).sum()
            loss.register_hook(lambda grad: any(action() for action in (*before, dp.step)) or None)
            loss.backward()
        for _ in range(3):
            in_backward(lambda: window(active=3, profile_memory={memory}))
            for _ in range(6):
                in_backward()
            assert (dp.status().state in ("waiting", "recording")) == {waits}, dp.status()
            if {waits}:
                steps(2)
                in_backward()
                steps(4)
            idle()
        """,
        closing,
    )
    assert [manifest.complete for manifest in manifests(tmp_path)] == [True] * 3
    assert "Traceback" not in log
    assert ("inside a backward pass" in log) == waits
