"""``dynprof attach`` never attaches to another process that got the same pid."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
import pytest

from dynprof.errors import LaunchError
from dynprof.launch import attaching
from dynprof.launch.attaching import reach
from tests import processes
from tests.integration.launch.attached import begun
from tests.integration.launch.reaching import needs_reaching
from tests.integration.launch.unprepared import LOOP, ended

if TYPE_CHECKING:
    from tests.processes import Process

LAST_NUMBER = Path("/proc/sys/kernel/ns_last_pid")
TRIES = 50
"""The number of tries, because other tests start processes too."""


class Jobs(NamedTuple):
    """Two processes without dynprof, one after the other, with the same pid."""

    chosen: Process
    folder: Path

    def exchange(self) -> Process:
        """End the chosen process; return another one that has its pid now."""
        time.sleep(0.03)  # start times are counted in hundredths of a second
        self.chosen.kill()
        self.chosen.communicate()
        for _ in range(TRIES):
            with contextlib.suppress(OSError):
                LAST_NUMBER.write_text(str(self.chosen.pid - 1))
            other = begun(self.folder, LOOP)
            if other.pid == self.chosen.pid:
                return other
            other.kill()
            other.communicate()
            (self.folder / "begun").unlink()
        pytest.skip("this user cannot choose the number of a process")


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    """Return a chosen process, and the folder of another one."""
    needs_reaching()
    (tmp_path / "other").mkdir()
    return Jobs(processes.start(["sleep", "100"]), tmp_path / "other")


@pytest.mark.parametrize("known_by", ["descriptor", "start time"])
@pytest.mark.parametrize("moment", ["chosen", "looked at"])
def test_another_process_with_its_number_is_left_alone(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, moment: str, known_by: str
) -> None:
    """The pid may change before or after the check of the process; also on old kernels."""
    others = []

    def reached(*_: object) -> None:
        pytest.fail("the other process was written to")

    monkeypatch.setattr(attaching, "write_memory", reached)
    monkeypatch.setattr("sys.remote_exec", reached, raising=False)  # from Python 3.14 on
    if known_by == "start time":
        monkeypatch.delattr(os, "pidfd_open")
    asked = {"action": "attach", "directory": str(jobs.folder / "watched"), "steps": None}
    seen = psutil.Process(jobs.chosen.pid)
    if moment == "chosen":
        others.append(jobs.exchange())
    else:

        def look(_: int) -> str:
            others.append(jobs.exchange())
            return ""

        monkeypatch.setattr(attaching, "why_not_reached", look)
    with pytest.raises(LaunchError, match="has ended"):
        reach(jobs.chosen.pid, asked, 5, seen)
    assert ended(jobs.folder, others[0]) == ""
    assert not os.path.lexists(jobs.folder / "watched")
