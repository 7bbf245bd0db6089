"""``dynprof log`` for several ranks, and while the log grows."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.integration.commands import dynprof, start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.running import RunningJob


def test_the_logs_are_merged_by_time(tmp_path: Path) -> None:
    """Records of two ranks are in the order of writing; lines of a record stay together."""
    log = tmp_path / "log"
    log.mkdir()
    (log / "dp_host_1_rank_0.log").write_text(
        "2026-01-01 00:00:01.000 INFO    rank 0  one\n"
        "2026-01-01 00:00:03.000 WARNING rank 0  three\n    and more\n"
    )
    (log / "dp_host_2_rank_1.log").write_text(
        "2026-01-01 00:00:02.000 INFO    rank 1  two\x1b[2J\n"
    )
    code, output, _ = dynprof("log", tmp_path)
    assert code == 0
    assert [line.split("  ")[-1] for line in output.splitlines()] == [
        "one",
        "two\\x1b[2J",
        "three",
        "and more",
    ]
    assert dynprof("log", tmp_path, "-n", 1)[1].count("\n") == 2


def test_the_log_is_followed(job: RunningJob) -> None:
    """What a job writes appears while it runs."""
    follower = start("log", job.root, "--follow")
    assert follower.stdout
    assert "watches" in follower.stdout.readline()
    assert "no window is requested yet; the next save" in follower.stdout.readline()
    job.edit(active=2)
    assert "request 1: accepted" in follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    follower.communicate()
    assert follower.returncode == 0


def test_a_log_that_does_not_exist_yet_is_followed(tmp_path: Path) -> None:
    """An operator may follow a job before its start; without ``--follow`` that is an error."""
    code, _, errors = dynprof("log", tmp_path)
    assert (code, "no job has called dp.init() on it yet" in errors) == (3, True)
    follower = start("log", tmp_path, "--follow")
    assert follower.stderr
    assert follower.stdout
    assert "no job has called dp.init() on it yet; waiting for one" in follower.stderr.readline()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "dp_host_1_rank_0.log").write_text(
        "2026-01-01 00:00:01.000 INFO    rank 0  one\n"
    )
    assert follower.stdout.readline().endswith("rank 0  one\n")
