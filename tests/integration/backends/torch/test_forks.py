"""Forks on one thread while another thread opens or closes a profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("closing", "call"),
    [
        ("detached", "dynprof.backends.torch.backend.end_config_thread"),
        ("detached", "dynprof.backends.torch.kineto.KINETO.start"),
        ("detached", "dynprof.backends.torch.detached_close.DetachedClose.detach_all"),
        ("detached", "dynprof.backends.torch.detached_close.DetachedClose.collect"),
        ("detached", "dynprof.backends.torch.detached_close.DetachedClose.write_result"),
        ("inline", "dynprof.backends.torch.kineto.KINETO.stop"),
    ],
)
def test_forks_wait_while_a_profiler_is_opened_or_closed(
    tmp_path: Path, closing: str, call: str
) -> None:
    """A child forked at that moment would have locks that no thread releases."""
    run(
        tmp_path,
        f"""
        import os, pkgutil
        about, forked, early = threading.Event(), threading.Event(), []
        def fork():
            if not (child := os.fork()):
                os._exit(0)
            forked.set()
            assert os.waitpid(child, 0)[1] == 0
        place, _, name = {call!r}.rpartition(".")
        owner = pkgutil.resolve_name(place)
        original = getattr(owner, name)
        def meanwhile(*args, **kwargs):
            if not early:
                os.register_at_fork(before=about.set)  # the last one registered is the first called
                threading.Thread(target=fork).start()
                about.wait()
                early.append(forked.wait(0.5))
            return original(*args, **kwargs)
        setattr(owner, name, meanwhile)
        window(active=2)
        steps(3)
        idle()
        assert early == [False]
        forked.wait()
        """,
        closing,
    )
    assert manifests(tmp_path)[-1].complete


MEANWHILE = """
import os
from dynprof.backends.torch import forks
from dynprof.backends.torch.detached_close import DetachedClose
collect, seen, forking = DetachedClose.collect, [], []
def meanwhile(*args):
    forked = threading.Event()
    def fork():
        if not (child := os.fork()):
            os._exit(0)
        forked.set()
        assert os.waitpid(child, 0)[1] == 0
    forking.append(threading.Thread(target=fork))
    forking[-1].start()
    seen.append(forked.wait(patience.pop(0)))
    return collect(*args)
DetachedClose.collect = meanwhile
def record(**settings):
    window(active=2, **settings)
    steps(3)
    idle()
    forking[-1].join()
"""
"""A script whose thread forks while events are collected, and notes whether it could."""


def test_forks_wait_only_for_the_first_events_of_a_kind(tmp_path: Path) -> None:
    """C++ registers some objects with glibc at their first use, under a lock.

    A child forked at that moment hung when it first did the same.
    """
    run(
        tmp_path,
        MEANWHILE
        + """
forks.FIRST_USE_S, patience = 600.0, [0.5, 60.0, 0.5, 60.0, 60.0]
for settings in ({}, {}, {"record_shapes": True}, {"record_shapes": True}, {}):
    record(**settings)
assert seen == [False, True, False, True, True], seen
""",
    )


def test_forks_wait_for_the_first_events_only_for_a_limited_time(tmp_path: Path) -> None:
    """The first events of a large window may take minutes."""
    run(
        tmp_path,
        MEANWHILE
        + """
forks.FIRST_USE_S, patience = 0.2, [60.0]
record()
assert seen == [True], seen
""",
    )


def test_a_child_forked_after_a_window_ends_by_exit(tmp_path: Path) -> None:
    """The child lacks a thread of libkineto's, for which exit() would wait forever."""
    run(
        tmp_path,
        """
        import os, sys
        window(active=2)
        steps(3)
        idle()
        if not (child := os.fork()):
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        """,
        unloads=True,
    )


@pytest.mark.parametrize(("closing", "memory"), [("detached", False), ("inline", True)])
def test_calls_of_a_child_are_not_traced(tmp_path: Path, closing: str, *, memory: bool) -> None:
    """A child forked in a window with stacks, on any thread, runs at full speed."""
    run(
        tmp_path,
        f"""
        import os, sys
        def child():
            if not (pid := os.fork()):
                os._exit(3 if sys.getprofile() else 0)
            assert os.waitpid(pid, 0)[1] == 0
        window(active=9, with_stack=True, profile_memory={memory})
        steps(1)
        assert sys.getprofile()
        child()
        failed = []
        def elsewhere():
            try:
                child()
            except AssertionError:
                failed.append("a child of another thread is traced")
        at_once(1, elsewhere)
        assert not failed, failed
        dp.stop()
        steps(1)
        idle()
        assert not sys.getprofile()
        """,
        closing,
    )
    assert manifests(tmp_path)[0].trace
