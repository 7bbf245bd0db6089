"""``dynprof analyse`` on a real Dask cluster of this machine, and behind fsspec's file systems."""

from __future__ import annotations

import csv
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import RequestRecord
from dynprof.captures.window_record import WindowRecord
from tests.processes import DYNPROF, run, start
from tests.rank_traces import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("distributed", reason="dask is not installed")

CLUSTER = """
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1",
                           dashboard_address=None)
    print(cluster.scheduler_address, flush=True)
    input()
    cluster.close()
"""


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Run a scheduler and two workers; give the address."""
    script = folder / "cluster.py"
    script.write_text(CLUSTER)
    command = [sys.executable, script.name]
    with start(command, cwd=folder, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("\n")


def dynprof(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of dynprof's."""
    return run([*DYNPROF, *arguments])


def test_a_cluster_makes_what_processes_make(tmp_path: Path) -> None:
    """The same files with the same bytes, from paths and from URLs; the late rank is named."""
    for name in ("here", "there", "url"):
        (tmp_path / name).mkdir()
        for rank in range(3):
            write(tmp_path / name, rank, work_ms=30.0 * (rank == 2))
    assert dynprof("analyse", str(tmp_path / "here")).returncode == 0
    with cluster(tmp_path) as address:
        for place in (str(tmp_path / "there"), f"file://{tmp_path / 'url'}"):
            done = dynprof("analyse", place, "--executor", "dask", "--scheduler", address)
            assert done.returncode == 0, done.stderr
            assert "rank 2 comes last to 5 of 5 collectives" in done.stderr

    def contents(name: str) -> dict[str, bytes]:
        found = (tmp_path / name).rglob("*")
        return {str(p.relative_to(tmp_path / name)): p.read_bytes() for p in found if p.is_file()}

    expected = contents("here")
    assert len(expected) > 20
    assert contents("there") == expected
    assert contents("url") == expected


def test_what_lies_behind_a_file_system_is_fetched_and_sent_back() -> None:
    """Of fsspec's kinds one in memory stands for those of clouds: files, ranks, one broken."""
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
    assert "is no trace" in problem
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
def test_a_cluster_that_is_not_there_is_said(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """With exit code 2."""
    write(tmp_path, 0)
    done = dynprof("analyse", str(tmp_path), *arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_an_unknown_kind_of_place_is_said() -> None:
    """With exit code 2, and no traceback."""
    done = dynprof("analyse", "nosuch://bucket/run")
    assert (done.returncode, "nosuch://bucket/run cannot be reached" in done.stderr) == (2, True)
