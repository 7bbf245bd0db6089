"""Signal handlers of the script's that come while its step moves a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.backends.test_nothing_hurts import manifests, run

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
        from dynprof.backends import annotations
        def annotate(*_):
            with torch.profiler.record_function("of the handler"):
                work()
        signal.signal(signal.SIGUSR1, annotate)
        original = annotations._end
        def interrupted(record):
            os.kill(os.getpid(), signal.SIGUSR1)
            original(record)
        annotations._end = interrupted
        window(active=2)
        with torch.profiler.record_function("an epoch"):
            steps(3)
        """,
    )
    assert manifests(tmp_path)[-1].complete
