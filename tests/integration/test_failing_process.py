"""Processes that fail, fork, end or share their interpreter: rows of docs/guarantees.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dynprof
from dynprof.captures.manifest import load_manifest
from tests.integration.running import below, steps_in, wait_for
from tests.integration.troubled import TroubledJob
from tests.processes import ROOT

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from dynprof.journal.status import Status


def test_a_fork_inside_a_window(tmp_path: Path) -> None:
    """The child has no session and writes nothing; the parent's window is whole."""
    fork = """
if dp.status().progress == (3, 50):
    if not (child := os.fork()):
        for _ in range(60):
            train_one_step()
            dp.step()
        os._exit(dp.status().state != "not initialised")
    assert os.waitpid(child, 0)[1] == 0
"""
    with TroubledJob(tmp_path, each=fork) as job:
        job.edit(active=50)
        manifest, trace = job.capture()
        assert (manifest.complete, len(steps_in(trace))) == (True, 50)
        assert {e["pid"] for e in trace["traceEvents"] if e.get("cat") == "cpu_op"} == {
            job.process.pid
        }
        assert len(below(job.root, "*.info.json")) == 1
        job.ends_unharmed()


STATES = {
    "idle": {},
    "waiting": {"start_step": 10**6},
    "warmup": {"warmup": 10**6},
    "recording": {"active": 10**6},
    "saving": {"active": 300, "with_stack": True},
}


GONE = {
    "waiting": "was killed with a waiting request; nothing of that is left",
    "warmup": "of 1,000,001 steps; nothing of that is left",
    "recording": "of 1,000,000 steps; nothing of that is left",
}
"""The next job's message on the killed one; a capture that was being saved has a manifest."""


@pytest.mark.parametrize("state", STATES)
def test_killed_in_every_state_and_restarted(tmp_path: Path, state: str) -> None:
    """After kill -9 no file with a final name is truncated. The next job starts idle, and works."""
    with TroubledJob(tmp_path) as job:
        if STATES[state]:
            job.edit(**STATES[state])
        job.when(state, lambda status: status.state == state)
        if state == "saving":
            wait_for("its manifest", lambda: below(job.root, "*.info.json") or None)
        job.process.kill()
        job.process.wait()
        assert not below(job.root, "*.gz")
        manifests = [load_manifest(path) for path in below(job.root, "*.info.json")]
        begun = "saving began and has not ended; the process may have been killed"
        assert [one.reason for one in manifests] == [begun] * (state == "saving")
        assert state in ("idle", "saving") or "accepted" in job.log()
    for path in below(job.root, "*.saving"):
        os.utime(path, (0, 0))  # younger files may still be written
    with TroubledJob(tmp_path) as job:
        if state in GONE:
            wait_for("what is said of it", lambda: GONE[state] in job.log() or None)
        assert "request 1" not in job.log()
        assert job.log().count("was killed") == (state in GONE)
        job.edit(active=2, start_step=0, warmup=0, with_stack=False)
        manifest, trace = job.capture()
        assert (manifest.complete, len(steps_in(trace))) == (True, 2)
        assert not [p for p in below(job.root, "*.saving") if p.is_dir()]
        job.ends_unharmed()


def test_sigterm(tmp_path: Path) -> None:
    """Without a handler of the script the process ends at once, as without dynprof."""
    with TroubledJob(tmp_path) as job:
        job.edit(active=10**6)
        job.when("the window", lambda status: status.state == "recording")
        job.process.terminate()
        job.process.communicate()
        assert job.process.returncode == -signal.SIGTERM
        assert not below(job.root, "*.gz")


def test_sys_setprofile_is_in_use(tmp_path: Path) -> None:
    """Operators are recorded while it is set; stacks, which would replace it, are refused."""
    with TroubledJob(
        tmp_path, "sys.setprofile(mine := lambda *a: None)", "assert sys.getprofile() is mine"
    ) as job:
        job.edit(active=2)
        assert job.capture()[0].complete
        job.edit(active=2, with_stack=True)
        status = job.when("the refusal", lambda status: bool(status.problems))
        assert "with_stack would replace the job's own sys.setprofile()" in status.problems[0]
        job.ends_unharmed()


TRACERS = {
    "coverage": """
import atexit, coverage
measured = coverage.Coverage(source=["."])
measured.start()
atexit.register(lambda: (measured.stop(), measured.save()))
""",
    "debugger": """
import atexit
lines = 0
def trace(frame, event, argument):
    global lines
    lines += event == "line"
    return trace
sys.settrace(trace)
atexit.register(lambda: open("traced", "w").write(str(lines)))
""",
}


@pytest.mark.parametrize("tool", TRACERS)
def test_coverage_or_a_debugger_is_active(tmp_path: Path, tool: str) -> None:
    """Tracers continue, and the window is whole, including stacks."""
    with TroubledJob(tmp_path, TRACERS[tool]) as job:
        job.edit(active=5, with_stack=True)
        manifest, trace = job.capture()
        assert (manifest.complete, len(steps_in(trace))) == (True, 5)
        job.ends_unharmed()
    if tool == "coverage":
        assert (tmp_path / ".coverage").exists()
    else:
        assert int((tmp_path / "traced").read_text()) > 100


ANSWERS = {"saved", "superseded", "refused"}
"""First words of the log for the final result of a request; other results fail that test."""


def test_thousands_of_saves_a_minute(tmp_path: Path) -> None:
    """For a second the config is saved as fast as possible: the last save is served, as the last.

    Not all earlier saves are read. Each that is read has one answer.
    """
    with TroubledJob(tmp_path) as job:
        config = json.loads(job.config.read_text())
        until_s, saves = time.monotonic() + 1, 0
        while time.monotonic() < until_s or saves <= 100:
            saves += 1
            job.config.write_text(json.dumps({**config, "metadata": {"save": saves}}))

        def is_served(status: Status) -> bool:
            if not status.edits or status.edits[-1].outcome != "saved":
                return False
            last, _ = job.capture(status.edits[-1].number)
            return last.request.config["metadata"] == {"save": saves}

        status = job.when("the capture of the last save", is_served)
        job.ends_unharmed()
        last, log = status.edits[-1].number, job.log()
        said = re.findall(r"  request (\d+): (\w+)", log)
        assert {int(number) for number, _ in said} == set(range(1, last + 1))
        ends = [(int(number), word) for number, word in said if word in ANSWERS]
        assert sorted(number for number, _ in ends) == list(range(1, last + 1))
        assert max(number for number, word in ends if word == "saved") == last < saves


@pytest.mark.long
def test_a_package_that_is_removed_under_a_job(tmp_path: Path) -> None:
    """As in an upgrade: windows work; functions that need another process are refused."""
    shutil.copytree(Path(dynprof.__file__).parent, tmp_path / "lib" / "dynprof")
    with TroubledJob(tmp_path, PYTHONPATH=f"{tmp_path}/lib:{ROOT}") as job:
        shutil.rmtree(tmp_path / "lib")
        beside = {"mstx": True, "gc_detect_threshold": 0.0, "host_sys": ["cpu"]}
        job.edit(
            active=2,
            analyse=True,
            experimental_config=beside,
            prof_dir="to",
            storage={"scratch_dir": "scratch"},
        )
        job.answer(1, "saved")
        assert f"nothing can be sent: {tmp_path}/lib/dynprof/" in job.log()
        assert "was removed since the job began; install dynprof again" in job.log()
        assert len(below(job.root / "scratch", "*.trace.json.gz")) == 1
        job.ends_unharmed()
