"""Threads of dynprof's own take no signals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.scripts import run_without_torch

if TYPE_CHECKING:
    from pathlib import Path


def test_a_signal_that_is_waited_for_on_a_thread(tmp_path: Path) -> None:
    """A job that blocks SIGTERM after init(), to wait for it, is not killed by it."""
    run_without_torch(
        tmp_path,
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        got = []
        waiting = threading.Thread(target=lambda: got.append(signal.sigwait({signal.SIGTERM})))
        waiting.start()
        window(active=2, experimental_config={"host_sys": ["CPU"]})
        dp.step()
        os.kill(os.getpid(), signal.SIGTERM)
        waiting.join()
        assert got == [signal.SIGTERM]
        """,
    )
