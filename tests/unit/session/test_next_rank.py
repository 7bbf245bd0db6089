"""The death of the next rank of the machine, as a rank logs it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.journal.status import Status
from dynprof.runtime.safe_write import write_atomic
from dynprof.session.periodic_checks import how_it_ended
from tests.processes import start

if TYPE_CHECKING:
    from tests.fake_job import Job
    from tests.processes import Process


def ended(code: str) -> Process:
    """Return a process that has ended, and whose parent has not asked how."""
    process = start([sys.executable, "-S", "-c", code])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


def test_how_a_process_ended_is_read_before_its_parent_does() -> None:
    """Afterwards it is unknown."""
    process = ended("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert how_it_ended(process.pid) == " of SIGSEGV"
    assert how_it_ended(ended("import os; os._exit(3)").pid) == " with exit code 3"
    assert process.wait() == -signal.SIGSEGV
    assert how_it_ended(process.pid) == ""


@pytest.mark.parametrize(("state", "is_logged"), [("idle", True), ("stopped", False)])
def test_a_rank_that_ended_its_session_has_not_died(
    job: Job, state: str, *, is_logged: bool
) -> None:
    """Only a process whose last status says that it trains has died."""
    process = ended("import os; os._exit(3)")
    status = Status(state, rank=1, pid=process.pid, step=7)
    layout = dataclasses.replace(job.session._process.layout, rank=1)
    layout.make_dir(layout.status.parent)
    write_atomic(layout.status, json.dumps(dataclasses.asdict(status)))
    job.session._periodic_checks._next_rank._wait(os.pidfd_open(process.pid), status)
    died = f"rank 1 (process {process.pid}) died with exit code 3, in about step "
    assert (died in job.log()) == is_logged
    assert job.session.status().death.startswith(died) == is_logged
