"""Messages on captures that ``prof_dir`` has put outside of the config's directory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.integration.commands import dynprof
from tests.integration.running import wait_for
from tests.rank_traces import write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.integration.buckets import Bucket
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


def test_commands_read_the_newest_window_at_a_url(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each downloads it from S3; what it makes is in the current folder, and nothing else stays."""
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    here, scratch, window = tmp_path / "here", tmp_path / "scratch", tmp_path / "window"
    for folder in (here, scratch, window):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TMPDIR", str(scratch))
    with bucket.served():
        write(window, 0, work_ms=5)
        bucket.put(window, "job/step_0-5_20260101T000000Z")
        second = int(time.time())
        wait_for("the next second of S3's clock", lambda: int(time.time()) > second or None)
        write(window, 0, work_ms=30)
        write(window, 1, work_ms=0)
        newest = "job/step_10-14_20260102T000000Z"
        bucket.put(window, newest)
        code, said, error = dynprof("report", "s3://runs/job")
        assert (code, said.strip().splitlines()[-1]) == (0, "report.html"), error
        assert "rank 0" in said
        one = f"s3://runs/{newest}/rank1.pt.trace.json"
        code, said, error = dynprof("query", one, "SELECT count(*) AS n FROM steps")
        assert (code, said.split()[-1]) == (0, "5"), error
        code, _, error = dynprof("merge", "s3://runs/job")
        assert code == 0, error
        code, said, error = dynprof("diff", "s3://runs/job/step_0-5_20260101T000000Z", one)
        assert code == 0, error
        code, _, error = dynprof("report", "s3://runs/nothing")
        assert (code, "s3://runs/nothing" in error) == (2, True)
    assert {path.name for path in here.iterdir()} == {"report.html", "merged.json.gz"}
    assert list(scratch.iterdir()) == []


def test_a_url_is_no_directory_of_a_job() -> None:
    """What needs a job's config says so, and downloads nothing."""
    code, said, error = dynprof("status", "s3://KEY:SECRET@bucket/job")
    assert (code, said) == (2, "")
    assert error.startswith("a URL is no directory; ")
    assert "SECRET" not in error
