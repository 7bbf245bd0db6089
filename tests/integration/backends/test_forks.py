"""Forks of one thread beside another that opens or closes a profiler."""

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
        ("detached", "dynprof.backends.torch.end_settings_thread"),
        ("detached", "dynprof.backends.kineto.KINETO.start"),
        ("detached", "dynprof.backends.detached_close.DetachedClose.take_off_all"),
        ("detached", "dynprof.backends.detached_close.DetachedClose.collect"),
        ("detached", "dynprof.backends.detached_close.DetachedClose.write_at"),
        ("inline", "dynprof.backends.kineto.KINETO.stop"),
    ],
)
def test_forks_wait_while_a_profiler_is_opened_or_closed(
    tmp_path: Path, closing: str, call: str
) -> None:
    """A child forked just then would have its locks, which nobody there lets go of."""
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
from dynprof.backends import forks
from dynprof.backends.detached_close import DetachedClose
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
"""Has a thread fork while events are collected, and looks whether it can by then."""


def test_forks_wait_for_the_first_events_of_a_kind_alone(tmp_path: Path) -> None:
    """What C++ makes only then it registers with glibc, under a lock.

    A child that was forked in that moment hung as it first did the same.
    """
    run(
        tmp_path,
        MEANWHILE
        + """
forks.FIRST_S, patience = 600.0, [0.5, 60.0, 0.5, 60.0, 60.0]
for settings in ({}, {}, {"record_shapes": True}, {"record_shapes": True}, {}):
    record(**settings)
assert seen == [False, True, False, True, True], seen
""",
    )


def test_forks_wait_for_the_first_events_for_a_while_alone(tmp_path: Path) -> None:
    """Those of a large window may take minutes."""
    run(
        tmp_path,
        MEANWHILE
        + """
forks.FIRST_S, patience = 0.2, [60.0]
record()
assert seen == [True], seen
""",
    )


def test_threads_that_fork_at_once(tmp_path: Path) -> None:
    """Before, in, and after windows, while events are collected too: every child ends well."""
    run(
        tmp_path,
        """
        import os, sys
        bad = []
        def fork(end=os._exit, count=5):
            for _ in range(count):
                if not (child := os.fork()):
                    work()
                    end(0)
                if code := os.waitpid(child, 0)[1]:
                    bad.append(code)
        forking = threading.Thread(target=at_once, args=(4, fork))
        forking.start()
        while forking.is_alive():
            window(active=3, with_stack=True)
            steps(5)
            fork(sys.exit, 1)  # through exit(), which waits for libkineto's thread if it was there
        forking.join()
        while dp.status().state != "idle":  # the last window may wait until the one before is saved
            steps(1)
            time.sleep(0.001)
        window(active=2)
        steps(3)
        idle()
        at_once(4, fork)
        assert not bad, bad
        """,
        unloads=True,
    )
    assert manifests(tmp_path)[-1].complete


@pytest.mark.parametrize(("closing", "memory"), [("detached", False), ("inline", True)])
def test_calls_of_a_child_are_not_traced(tmp_path: Path, closing: str, *, memory: bool) -> None:
    """Forked in a window with stacks, on whichever thread, it calls functions at its own pace."""
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


def test_two_loaders_with_workers_begin_on_two_threads(tmp_path: Path) -> None:
    """After a window, two DataLoaders whose workers are forked at the same time do their work."""
    run(
        tmp_path,
        """
        from torch.utils.data import DataLoader
        def load():
            assert len(list(DataLoader(range(8), num_workers=2))) == 8
        load()  # a child forked while another thread imports a module hangs, in plain Python
        window(active=2)
        steps(3)
        idle()
        for _ in range(3):
            at_once(2, load)
        """,
    )
