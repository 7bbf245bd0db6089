"""A request that waits while the script imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.scripts import run_without_torch

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


def test_torch_that_comes_while_a_request_waits(tmp_path: Path) -> None:
    """The window is one of torch, not of the profiler at the time of the save."""
    said = run_without_torch(
        tmp_path,
        """
        def until(condition):
            while not condition():
                time.sleep(0.01)
        Path("prof_config/profiler_config.json").write_text('{"active": 2, "activities": ["CPU"]}')
        until(lambda: dp.status().edits and dp.status().edits[-1].text)
        first = dp.status().edits[-1].text
        import torch
        until(lambda: dp.status().edits[-1].text != first)
        print(first, dp.status().edits[-1].text, sep="; ")
        while dp.status().state != "idle":
            torch.ones(3).add(1)
            dp.step()
            time.sleep(0.001)
        """,
    )
    assert "2 steps with python (CPU)" in said
    assert "torch (CPU) serves it now: the job has loaded it since" in said
    (path,) = tmp_path.rglob("*.info.json")
    manifest = load_manifest(path)
    assert (manifest.complete, manifest.backend) == (True, "torch")
