"""``dynprof analyse`` on a real Dask cluster of this machine."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

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
    """Run a scheduler and two workers; yield the address."""
    script = folder / "cluster.py"
    script.write_text(CLUSTER)
    command = [sys.executable, script.name]
    with start(command, cwd=folder, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("\n")


def dynprof(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a dynprof command."""
    return run([*DYNPROF, *arguments])


def test_a_cluster_gives_the_result_of_processes(tmp_path: Path) -> None:
    """Paths and URLs give identical files, and the late rank is named."""
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
