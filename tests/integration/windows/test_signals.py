"""Signal handlers of the script's that come while its step moves a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("call", ["stop", "shutdown"])
def test_a_signal_handler_in_the_midst_of_a_step(tmp_path: Path, call: str, memory: bool) -> None:
    """The window is kept, no profiler stays on, and the script may profile at once."""
    run(
        tmp_path,
        f"""
        import os, signal
        from dynprof.windows.window import Window
        signal.signal(signal.SIGUSR1, lambda *_: dp.{call}())
        original = Window.end_step
        def interrupted(*args):
            Window.end_step = original
            os.kill(os.getpid(), signal.SIGUSR1)
            return original(*args)
        window(active=1000, profile_memory={memory})
        steps(2)
        Window.end_step = interrupted
        steps(3)
        assert not torch.autograd._profiler_enabled()
        profile()
        """,
    )
    (manifest,) = manifests(tmp_path)
    assert (manifest.steps.recorded, manifest.complete) == (3, False)
    assert manifest.trace


def test_a_signal_handler_with_a_range_while_ranges_are_ended(tmp_path: Path) -> None:
    """It does not wait for the thread that it has interrupted."""
    run(
        tmp_path,
        """
        import os, signal
        from dynprof.backends import open_annotations
        def annotate(*_):
            with torch.profiler.record_function("of the handler"):
                work()
        signal.signal(signal.SIGUSR1, annotate)
        original = open_annotations._end
        def interrupted(record):
            os.kill(os.getpid(), signal.SIGUSR1)
            original(record)
        open_annotations._end = interrupted
        window(active=2)
        with torch.profiler.record_function("an epoch"):
            steps(3)
        """,
    )
    assert manifests(tmp_path)[-1].complete


def test_what_a_signal_handler_raises_reaches_the_script(tmp_path: Path) -> None:
    """Also while a window opens or closes; the script may go on, and the next window is whole."""
    run(
        tmp_path,
        """
        import signal
        from dynprof.windows.window import Window
        class Preempted(Exception):
            pass
        def handler(number, frame):
            signal.signal(number, signal.SIG_DFL)
            raise Preempted
        for name in ("open", "begin_step", "close"):
            whole = getattr(Window, name)
            def interrupted(self, *args, whole=whole, **settings):
                result = whole(self, *args, **settings)
                signal.raise_signal(signal.SIGUSR1)
                return result
            signal.signal(signal.SIGUSR1, handler)
            setattr(Window, name, interrupted)
            try:
                window(active=1)
                steps(3)
            except Preempted:
                pass
            else:
                raise AssertionError(name)
            setattr(Window, name, whole)
            steps(3)
            idle()
            window(active=2)
            while dp.status().state != "idle":  # it waits for the events of the one given up
                steps(1)
            profile()
        """,
    )
    found = [manifest.complete for manifest in manifests(tmp_path) if manifest.trace]
    assert found == [True] * 3


def test_a_signal_handler_that_asks_for_the_status(tmp_path: Path) -> None:
    """Also where the thread that it interrupts is just noting something there."""
    run(
        tmp_path,
        """
        import dataclasses, signal
        real = dataclasses.replace
        def replace(*args, **settings):
            if threading.current_thread() is not threading.main_thread():
                return real(*args, **settings)
            dataclasses.replace = real
            signal.raise_signal(signal.SIGUSR1)
            return real(*args, **settings)
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(dp.status()))
        window(active=1)
        dataclasses.replace = replace
        steps(2)
        assert seen
        """,
    )
