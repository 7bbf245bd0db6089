"""Scripts that replace the clocks of the module ``time``, as tests of training code do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import run_without_torch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("instead", ["lambda *_: 1000.0", "lambda *_: next(iter(()))"])
def test_clocks_that_the_script_replaces(tmp_path: Path, instead: str) -> None:
    """One that stands still or fails is the script's alone: dynprof calls what was there before."""
    run_without_torch(
        tmp_path,
        f"""
        real, clocks = time.time, "time monotonic perf_counter sleep".split()
        had = {{name: getattr(time, name) for name in clocks}}
        called = []
        for name in clocks:
            setattr(time, name, lambda *a, name=name: (called.append(name), ({instead})(*a))[1])
        before_s = real()
        window(active=2)
        for _ in range(5):
            dp.step()
        while dp.status().state != "idle":
            had["sleep"](0.001)
        log = [path.read_text() for path in Path("prof_config/log").iterdir()]
        dp.shutdown()
        slept = "sleep" in called  # the time watchdog's threads may look at
        for name, clock in had.items():
            setattr(time, name, clock)
        (path,) = Path("prof_config").rglob("*.info.json")
        manifest = json.loads(path.read_text())
        assert manifest["complete"], manifest
        assert "saved" in log[0] and "1970" not in log[0], log
        from datetime import datetime
        opened_s = datetime.fromisoformat(manifest["opened_at"].replace("Z", "+00:00")).timestamp()
        assert before_s - 1 < opened_s < real()
        assert not slept
        """,
    )
