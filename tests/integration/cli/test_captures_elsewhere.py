"""Messages on captures that ``prof_dir`` has put outside of the config's directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.commands import dynprof

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.running import RunningJob


def test_report_names_newer_captures_elsewhere(job: RunningJob, tmp_path: Path) -> None:
    """A report of the config's folder says that it shows an older capture."""
    for place in ("./", tmp_path / "elsewhere"):
        assert dynprof("arm", job.root, "--prof-dir", place, "--wait")[0] == 0
    told = f"newer captures are elsewhere, as prof_dir says: {tmp_path / 'elsewhere'}/step_"
    for command in ("top", "report"):
        assert told in dynprof(command, job.root)[2]
    assert dynprof("arm", job.root, "--prof-dir", "./", "--wait")[0] == 0
    assert told not in dynprof("top", job.root)[2]


@pytest.mark.parametrize("command", ["report", "top", "view", "merge"])
def test_a_url_of_captures_is_named(command: str) -> None:
    """The other commands say that only ``analyse`` reads a URL."""
    code, said, error = dynprof(command, "s3://bucket/captures")
    assert (code, said) == (2, "")
    assert error.startswith(
        "s3:// cannot be read here; dynprof analyse writes report and tables there"
    )
