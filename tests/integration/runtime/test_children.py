"""A job that does not wait for the processes that dynprof starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_that_ignores_the_ends_of_its_children(tmp_path: Path) -> None:
    """Self-test and analysis then have no exit code; it reads as 0 whatever happened."""
    run(
        tmp_path,
        """
        import signal
        dp.shutdown()
        from dynprof.backends.torch import detached_close_selftest
        detached_close_selftest.command = lambda *_, **__: ["/bin/false"]
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        assert detached_close_selftest.run_in_fresh_interpreter().answer == (
            "the self-test of the detached close ended with code 0: no output"
        )
        from dynprof.captures.analysis_start import SUCCEEDED, begin_analysis
        Path("a.trace.json").write_text("{}")
        begun = begin_analysis(Path("a.trace.json"))
        assert "is not a trace" in begun.why_failed(SUCCEEDED, wait=True)
        """,
    )
