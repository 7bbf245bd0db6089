"""Python's profile functions: the script's own stay, and dynprof leaves none behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import TUNABLES, run, run_without_torch

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


def test_more_windows_than_keys_of_thread_local_storage(tmp_path: Path) -> None:
    """VizTracer takes one of 1,024 keys for each tracer, and aborts the process if none is left."""
    run_without_torch(
        tmp_path,
        """
        import ctypes, resource
        for _ in range(950):  # leaves few of the 1,024; a window for each takes too long
            assert ctypes.CDLL(None).pthread_key_create(ctypes.byref(ctypes.c_uint()), None) == 0
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for _ in range(90):
            window(active=1)
            dp.step()
            idle()
        while threading.active_count() > threads:  # those of the last window end in a moment
            time.sleep(0.01)
        while len(os.listdir("/proc/self/fd")) > files + 2:  # but those of a status being written
            time.sleep(0.01)
        """,
    )


def test_a_profile_function_for_new_threads(tmp_path: Path) -> None:
    """If the script has one, it stays and the window is refused. Otherwise none is left behind."""
    run_without_torch(
        tmp_path,
        """
        window(active=1)
        dp.step()
        idle()
        assert threading.getprofile() is None
        hook = lambda frame, event, argument: None
        threading.setprofile(hook)
        window(active=1)
        assert "threading.setprofile" in dp.status().edits[-1].text, dp.status()
        assert threading.getprofile() is hook
        """,
    )


def test_with_stack_leaves_new_threads_their_profile_function(tmp_path: Path) -> None:
    """Torch would replace the script's own function on every thread, permanently."""
    log = run(
        tmp_path,
        """
        threading.setprofile(lambda frame, event, argument: None)
        window(active=1, with_stack=True)
        steps(2)
        """,
    )
    assert "with_stack would replace the job's own threading.setprofile()" in log


def test_threads_that_begin_and_end_while_tracing_is_ended(tmp_path: Path) -> None:
    """No thread has a profile function afterwards, even if other threads end during the check."""
    run(
        tmp_path,
        """
        import sys
        from dynprof.backends.call_tracing import stop_tracing_calls
        over, found = threading.Event(), []
        def keep():
            sys.setprofile(lambda frame, event, argument: None)
            begun.wait()
            over.wait()
            found.append(sys.getprofile())
        begun = threading.Barrier(4)
        keepers = [threading.Thread(target=keep) for _ in range(3)]
        for each in keepers:
            each.start()
        begun.wait()
        def churn():
            while not over.is_set():
                thread = threading.Thread(target=int)
                thread.start()
                thread.join()
        churners = [threading.Thread(target=churn) for _ in range(3)]
        for each in churners:
            each.start()
        sys.setswitchinterval(1e-6)
        for _ in range(5_000):
            stop_tracing_calls()
        sys.setswitchinterval(0.005)
        over.set()
        for each in churners + keepers:
            each.join()
        assert found == [None] * 3, found
        """,
        GLIBC_TUNABLES=TUNABLES,
    )
