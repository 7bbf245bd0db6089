"""``dynprof analyse`` behind fsspec's file systems, and without the requested cluster."""

from __future__ import annotations

import csv
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import RequestRecord
from dynprof.captures.window_record import WindowRecord
from tests.processes import DYNPROF, run
from tests.rank_traces import write

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = pytest.mark.skipif(not find_spec("distributed"), reason="dask is not installed")


def dynprof(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a dynprof command."""
    return run([*DYNPROF, *arguments])


def test_captures_on_a_remote_file_system_are_fetched_and_results_sent_back() -> None:
    """A file system in memory represents those of clouds: files, ranks, one of them broken."""
    upath = pytest.importorskip("upath", reason="universal_pathlib is not installed")
    from dynprof.analysis.runs.many_traces import analyse_each
    from dynprof.analysis.runs.one_trace import traces_in
    from dynprof.analysis.runs.remote_files import located

    window = located("memory://bucket/run/window")
    assert isinstance(window, upath.UPath)
    window.mkdir(parents=True)
    for rank in range(2):
        write(window, rank, work_ms=30.0 * (rank == 1))
    (window / "broken.pt.trace.json").write_text("no trace")
    (window / "info").mkdir()
    told = WindowRecord(
        dynprof="0", leader="", world_size=4, start_step=0, first=0, last=4, asked=(0, 1, 2),
        ranks={}, request=RequestRecord(number=1, edited_at="", sha256="", config={}), missing={},
        agreed_ms=1, complete=True,
    )  # fmt: skip
    (window / "info" / "window.json").write_text(told.model_dump_json())
    outcome = analyse_each(traces_in(window), ["text"], processes=1)
    (problem,) = outcome.problems.values()
    assert "is not a trace" in problem
    verdict, missing = outcome.verdicts[window]
    assert verdict.startswith("rank 1 comes last")
    assert missing == "missing here: 1 of 3 ranks"
    assert all(path.is_file() for path in outcome.made)
    with (window / "analysis" / "ranks.csv").open(newline="") as file:
        assert {row["Rank"] for row in csv.DictReader(file)} == {"0", "1"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--executor", "dask"), "go together"),
        (("--scheduler", "tcp://127.0.0.1:1"), "go together"),
        (("--executor", "dask", "--scheduler", "nonsense://x"), "no Dask scheduler answers at"),
    ],
)
def test_an_unreachable_cluster_is_an_error(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """The exit code is 2."""
    write(tmp_path, 0)
    done = dynprof("analyse", str(tmp_path), *arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_an_unknown_url_scheme_is_an_error() -> None:
    """The exit code is 2, without a traceback."""
    done = dynprof("analyse", "nosuch://bucket/run")
    assert (done.returncode, "nosuch://bucket/run cannot be reached" in done.stderr) == (2, True)


def test_a_bucket_that_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    """The error of the file system's own package is one line, without a traceback."""
    pytest.importorskip("s3fs")
    env = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    env |= {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no"),
    }
    done = run([*DYNPROF, "analyse", "s3://bucket/run"], env=env)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("s3://bucket/run cannot be reached: NoCredentialsError")
