"""Signal handlers of the script that run while its step opens or closes a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


def test_an_exception_of_a_signal_handler_reaches_the_script(tmp_path: Path) -> None:
    """The exception also comes out of a half-opened window; the next window is whole."""
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
