"""The environment variable that names the directory to watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.launch.variables import CONFIG, VENDORS_CONFIG, requested_directory

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_vendors_variable_is_used_without_dynprof_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without DYNPROF_CONFIG, PROF_CONFIG_PATH is used unless torch_npu is installed."""
    both = {CONFIG: "ours", VENDORS_CONFIG: "vendors"}
    text = "PROF_CONFIG_PATH=vendors is not watched; DYNPROF_CONFIG takes precedence"
    assert requested_directory({VENDORS_CONFIG: "vendors"}) == ("vendors", "")
    assert requested_directory(both) == ("ours", text)
    assert requested_directory({**both, VENDORS_CONFIG: "ours"}) == ("ours", "")
    assert requested_directory({}) == ("", "")
    (tmp_path / "torch_npu.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    directory, why = requested_directory({VENDORS_CONFIG: "vendors"})
    assert (directory, "torch_npu is installed and reads it" in why) == ("", True)
