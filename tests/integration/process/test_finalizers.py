"""Finalizers of the script's, which Python runs on any thread, dynprof's as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.scripts import run_without_torch

if TYPE_CHECKING:
    from pathlib import Path


def test_one_that_shuts_down_on_a_thread_of_dynprofs(tmp_path: Path) -> None:
    """The thread would wait for itself; the script's next step ends it, and keeps the window."""
    printed = run_without_torch(
        tmp_path,
        """
        from dynprof.process.threads import own_thread
        window(active=100)
        for _ in range(3):
            dp.step()
        thread = own_thread(dp.shutdown, "dynprof-journal")  # as its collector would
        thread.start()
        thread.join()
        assert dp.status().state == "recording"
        dp.step()
        assert dp.status().state == "not initialised"
        dp.init("prof_config")
        window(active=1)
        dp.step()
        idle()
        print(len(list(Path("prof_config").rglob("*.trace.json.gz"))))
        """,
    )
    assert printed.split() == ["2"]
