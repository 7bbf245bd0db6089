"""The script's profilers, on other threads and of other kinds, record whole profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import TUNABLES, manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


def test_a_profiler_on_another_thread_in_a_window(tmp_path: Path) -> None:
    """The profile is whole, the window gives way before it begins, and no thread keeps state."""
    log = run(
        tmp_path,
        """
        import itertools, psutil
        running, done = threading.Event(), threading.Event()
        def elsewhere():
            with torch.profiler.profile() as mine:
                running.set()
                work()
                done.wait()
            assert any(event.name == "aten::add" for event in mine.events())
        for memory, stacks in itertools.product((False, True), repeat=2):
            running.clear()
            done.clear()
            window(active=10**7, profile_memory=memory, with_stack=stacks)
            steps(3)
            thread = threading.Thread(target=elsewhere)
            thread.start()
            while not running.is_set():
                steps(1)
                time.sleep(0.001)
            steps(100)
            assert not torch.autograd._profiler_enabled()
            done.set()
            thread.join()
            steps(1)
            idle()  # to save the window takes memory, too
            before = psutil.Process().memory_info().rss
            steps(5000)
            assert psutil.Process().memory_info().rss - before < 5_000_000
            window(active=2)
            steps(3)
            idle()
        """,
    )
    assert log.count("early: the script started a profiler of its own") == 4
    assert "refused" not in log
    assert [found.complete for found in manifests(tmp_path)] == [False, True] * 4


def test_both_threads_profile_one_after_the_other(tmp_path: Path) -> None:
    """The thread of a lost window can start the script's next profiler before any step."""
    run(
        tmp_path,
        """
        from dynprof.backends.torch import kineto
        kineto.GIVE_WAY_S = 0.1
        for _ in range(2):
            window(active=1000, profile_memory=True)
            while dp.status().state != "recording":
                steps(1)
            elsewhere()
            profile()
            steps(3)
            assert not torch.autograd._profiler_enabled()
            idle()
        window(active=2)
        while dp.status().state != "recording":
            steps(1)
        steps(3)
        """,
    )
    assert manifests(tmp_path)[-1].complete


@pytest.mark.parametrize(("closing", "then"), [("detached", "steps(3)"), ("inline", "profile()")])
def test_a_profiler_elsewhere_outlives_a_window_that_was_lost(
    tmp_path: Path, closing: str, then: str
) -> None:
    """When that profiler ends, the window's thread can take its next step or start a profiler."""
    log = run(
        tmp_path,
        f"""
        from dynprof.backends.torch import kineto
        kineto.GIVE_WAY_S = 0.1
        began, end, found = threading.Event(), threading.Event(), []
        def long():
            with torch.profiler.profile() as mine:
                began.set()
                work()
                end.wait()
            found.extend(event.name for event in mine.events())
        window(active=1000, profile_memory=True, with_stack=True)
        steps(3)
        thread = threading.Thread(target=long)
        thread.start()
        began.wait()
        steps(3)
        end.set()
        thread.join()
        assert "aten::add" in found, found
        {then}
        assert not torch.autograd._profiler_enabled()
        idle()
        window(active=2)
        while dp.status().state != "recording":
            steps(1)
        steps(3)
        """,
        closing,
    )
    assert "the script started a torch.profiler of its own in the window" in log
    assert manifests(tmp_path)[-1].complete


@pytest.mark.parametrize("memory", [False, True])
def test_the_legacy_profiler_in_a_window(tmp_path: Path, memory: bool) -> None:
    """The script gets any profiler that it requests."""
    log = run(
        tmp_path,
        f"""
        from torch.autograd import profiler_legacy
        window(active=1000, profile_memory={memory})
        steps(2)
        with profiler_legacy.profile() as mine:
            work()
        assert any(event.name == "aten::add" for event in mine.function_events)
        with torch.autograd.profiler.profile(use_cpu=True) as newer:
            work()
        steps(2)
        idle()
        window(active=2)
        steps(3)
        """,
    )
    assert "early: the script started a profiler of its own" in log
    assert manifests(tmp_path)[-1].complete


def test_a_profiler_that_another_thread_cannot_stop(tmp_path: Path) -> None:
    """Torch only warns and continues; so does dynprof, and leaves the session to the script."""
    log = run(
        tmp_path,
        """
        mine = torch.profiler.profile()
        began, end = threading.Event(), threading.Event()
        found = []
        def record():
            mine.start()
            work()
            began.set()
            end.wait()
            mine.stop()
            found.extend(event.name for event in mine.events())
        recording = threading.Thread(target=record)
        recording.start()
        began.wait()
        stopping = threading.Thread(target=lambda: mine.profiler.__exit__(None, None, None))
        stopping.start()
        stopping.join()
        window(active=1)
        steps(3)
        end.set()
        recording.join()
        assert "aten::add" in found, found
        """,
    )
    assert "another torch.profiler is active in this process" in log


def test_a_profiler_of_all_threads_outlives_its_own_thread(tmp_path: Path) -> None:
    """The profiler is still on, and belongs to the script."""
    log = run(
        tmp_path,
        """
        from torch._C._profiler import _ExperimentalConfig
        everywhere = _ExperimentalConfig(profile_all_threads=True)
        mine = torch.profiler.profile(experimental_config=everywhere)
        at_once(1, mine.start)
        work()
        window(active=1)
        steps(3)
        mine.stop()
        assert any(event.name == "aten::add" for event in mine.events())
        window(active=1)
        steps(3)
        idle()
        """,
    )
    assert "another torch.profiler is active in this process" in log
    assert [manifest.complete for manifest in manifests(tmp_path)] == [True]


@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_a_profiler_inside_a_backward_pass_in_a_window(tmp_path: Path, closing: str) -> None:
    """The profiler discards the window's recording; dynprof ends no step in a freed profiler."""
    run(
        tmp_path,
        """
        from dynprof.backends.torch import kineto
        kineto.GIVE_WAY_S = 0.1
        profile()
        for _ in range(2):
            window(active=3, with_stack=True, profile_memory=True)
            steps(1)
            assert dp.status().state == "recording"
            leaf = torch.ones(3, requires_grad=True)
            product = leaf * 2
            product.register_hook(lambda _: profile())
            product.sum().backward()
            steps(2)
            assert not torch.autograd._profiler_enabled()
            profile()
            idle()
        window(active=3, with_stack=True)
        steps(4)
        idle()
        """,
        closing,
        GLIBC_TUNABLES=TUNABLES,
    )
    assert [manifest.complete for manifest in manifests(tmp_path)] == [False, False, True]
