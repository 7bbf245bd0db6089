"""Processes that fail or are treated roughly: the other rows of docs/failures.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dynprof
from dynprof.captures.manifest import load_manifest
from tests.integration.running import RunningJob, below, steps_in, wait_for
from tests.integration.troubled import TroubledJob
from tests.processes import ROOT

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from dynprof.journal.status import Status

BREAK = "import dynprof.backends.torch as b; b.{where} = lambda *a, **k: {what}"


@pytest.mark.parametrize(
    "where",
    [
        "TorchBackend.blocked_by",
        "TorchBackend.prepare",
        "TorchBackend.versions",
        "TorchRecording.start",
        "TorchRecording.begin_step",
        "TorchRecording.close",
        "TorchRecording.save",
        "TorchRecording.discard",
    ],
)
def test_a_backend_that_raises(tmp_path: Path, where: str) -> None:
    """Whatever call fails, the window is given up in words and training does not notice."""
    with TroubledJob(tmp_path, BREAK.format(where=where, what="1 / 0")) as job:
        if where.endswith("discard"):
            job.edit(warmup=10**6)
            job.when("the warm-up", lambda status: status.state == "warmup")
            job.edit(cancel=True)
            job.answer(2, "cancel")
        else:
            job.edit(active=3, warmup=2)
            status = job.when("the failure", lambda status: bool(status.last_error))
            assert "ZeroDivisionError" in str(status.last_error)
        job.still_trains()
        job.ends_unharmed()


@pytest.mark.parametrize(
    ("where", "what"), [("TorchRecording.save", "None"), ("TorchBackend.prepare", "None")]
)
def test_a_backend_that_returns_nothing(tmp_path: Path, where: str, what: str) -> None:
    """Nothing where a trace or a recording should be is a failure in words."""
    with TroubledJob(tmp_path, BREAK.format(where=where, what=what)) as job:
        job.edit(active=3)
        status = job.answer(1, "failed")
        assert status.edits[-1].text
        job.still_trains()
        job.ends_unharmed()


def test_a_backend_that_hangs_in_save(tmp_path: Path) -> None:
    """The state stays saving, the next request waits in words, and the end gives it up."""
    hang = BREAK.format(where="TorchRecording.save", what="time.sleep(1e6)")
    with TroubledJob(tmp_path, hang, DYNPROF_EXIT_WAIT_S="0.5") as job:
        job.edit(active=3)
        job.when("saving", lambda status: status.state == "saving")
        job.edit(active=2)
        job.answer(2, "waiting")
        job.still_trains()
        job.ends_unharmed()
        log = job.log()
        assert "request 2: waits, the last capture is being saved" in log
        assert "saving is given up: it took more than 0.5 s" in log
        assert "request 2: not served, the process ended" in log


@pytest.mark.parametrize("days", [-1, 1])
def test_the_clock_jumps(tmp_path: Path, days: int) -> None:
    """A day either way in the middle of a window: durations and requests do not notice."""
    jump = f"""
if step == 200:
    time.time = lambda real=time.time: real() + {days * 86_400}
"""
    with TroubledJob(tmp_path, each=jump) as job:
        job.edit(active=400)
        manifest, trace = job.capture()
        assert manifest.complete
        assert len(steps_in(trace)) == 400
        assert 0 < float(f"{manifest.cost.step_during_ms}") < 1000
        job.edit(active=2)
        assert job.capture(2)[0].complete
        before = job.status()
        job.when("another heartbeat", lambda status: before is None or status.step > before.step)
        job.ends_unharmed()


def test_a_fork_inside_a_window(tmp_path: Path) -> None:
    """The child is not recorded and writes nothing; the parent's window is whole."""
    fork = """
if dp.status().progress == (3, 50) and os.fork() == 0:
    train_one_step()
    dp.step()
    os._exit(0)
"""
    with TroubledJob(tmp_path, each=fork) as job:
        job.edit(active=50)
        manifest, trace = job.capture()
        assert (manifest.complete, len(steps_in(trace))) == (True, 50)
        assert {e["pid"] for e in trace["traceEvents"] if e.get("cat") == "cpu_op"} == {
            job.process.pid
        }
        job.ends_unharmed()


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise SystemExit", "1 / 0", "os._exit(0)"])
def test_the_interpreter_shuts_down_inside_a_window(tmp_path: Path, end: str) -> None:
    """An orderly end keeps what there is; a hard one leaves no half file."""
    with TroubledJob(tmp_path, each=f"if dp.status().progress == (30, 10**6): {end}") as job:
        job.edit(active=10**6)
        job.process.communicate()
        assert job.process.returncode in (0, 1)
        if "_exit" in end:
            assert not below(job.root, "*.gz")
        else:
            manifest, trace = job.capture()
            assert (manifest.complete, manifest.steps.recorded) == (False, 30)
            *whole, cut = steps_in(trace)
            assert f"the trace ends inside step {cut}, which is not counted" in manifest.remarks
            text = f"30 of 1,000,000 steps ({whole[0]}-{whole[-1]}); early: the process ended"
            assert text in job.log()


STATES = {
    "idle": {},
    "waiting": {"start_step": 10**6},
    "warmup": {"warmup": 10**6},
    "recording": {"active": 10**6},
    "saving": {"active": 800, "with_stack": True},
}


GONE = {
    "waiting": "was killed with a request that waited; nothing of that is left",
    "warmup": "of 1,000,001 steps; nothing of that is left",
    "recording": "of 1,000,000 steps; nothing of that is left",
}
"""What the next job says of the killed one; a capture that was being saved has a manifest."""


@pytest.mark.parametrize("state", STATES)
def test_killed_in_every_state_and_restarted(tmp_path: Path, state: str) -> None:
    """Kill -9: nothing torn under a final name; the next job does nothing by itself, then works."""
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
        begun = "saving it has begun and not ended; a process that was killed leaves it so"
        assert [one.reason for one in manifests] == [begun] * (state == "saving")
        assert state in ("idle", "saving") or "accepted" in job.log()
    for path in below(job.root, "*.saving"):
        os.utime(path, (0, 0))  # what is younger than a minute may be in the making
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
    """Without a handler of the script's the process ends at once, as it would without dynprof."""
    with TroubledJob(tmp_path) as job:
        job.edit(active=10**6)
        job.when("the window", lambda status: status.state == "recording")
        job.process.terminate()
        job.process.communicate()
        assert job.process.returncode == -signal.SIGTERM
        assert not below(job.root, "*.gz")


def test_the_memory_limit(tmp_path: Path) -> None:
    """A window in which the process grows too much closes early and keeps what it has."""
    grow = (
        "if dp.status().state == 'recording': globals().setdefault('hog', []).append(b'x' * 10**6)"
    )
    with TroubledJob(tmp_path, each=grow) as job:
        job.edit(active=10**6, limits={"max_memory_mb": 50})
        manifest, trace = job.capture()
        assert "the process grew by" in manifest.reason
        assert "limits.max_memory_mb is 50" in manifest.reason
        assert len(steps_in(trace)) == manifest.steps.recorded > 10
        job.ends_unharmed()


def test_another_profiler_is_active(tmp_path: Path) -> None:
    """The script's own torch.profiler goes first; the window is refused in words."""
    own = "import atexit; own = torch.profiler.profile(); own.start(); atexit.register(own.stop)"
    with TroubledJob(tmp_path, own) as job:
        job.edit(active=2)
        status = job.when("the refusal", lambda status: bool(status.problems))
        assert "another torch.profiler is active in this process" in status.problems[0]
        job.ends_unharmed()


def test_sys_setprofile_is_in_use(tmp_path: Path) -> None:
    """Operators are recorded beside it; stacks, which would take its place, are refused."""
    with TroubledJob(
        tmp_path, "sys.setprofile(mine := lambda *a: None)", "assert sys.getprofile() is mine"
    ) as job:
        job.edit(active=2)
        assert job.capture()[0].complete
        job.edit(active=2, with_stack=True)
        status = job.when("the refusal", lambda status: bool(status.problems))
        assert "take the place of the job's own sys.setprofile()" in status.problems[0]
        job.ends_unharmed()


@pytest.mark.parametrize(
    "tool",
    [("-m", "coverage", "run", "--source=."), ("-m", "pdb", "-c", "continue")],
    ids=["coverage", "pdb"],
)
def test_coverage_or_a_debugger_is_active(tmp_path: Path, tool: tuple[str, ...]) -> None:
    """Tracers go on tracing, and the window is whole, stacks included."""
    with TroubledJob(tmp_path, through=(sys.executable, *tool)) as job:
        job.edit(active=5, with_stack=True)
        manifest, trace = job.capture()
        assert (manifest.complete, len(steps_in(trace))) == (True, 5)
        job.ends_unharmed()
        if "coverage" in tool:
            assert (tmp_path / ".coverage").exists()


ANSWERS = {"saved", "superseded", "refused"}
"""Words with which the log begins what became of a request in the end; others fail that test."""


def test_thousands_of_saves_a_minute(tmp_path: Path) -> None:
    """Five seconds of saving as fast as can be: the last save is served, and the last to be so.

    Not all of those before it are read; each that is has one answer.
    """
    with TroubledJob(tmp_path) as job:
        config = json.loads(job.config.read_text())
        until_s, saves = time.monotonic() + 5, 0
        while time.monotonic() < until_s or saves <= 1000:
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


def test_a_switch_interval_set_while_a_file_is_read(tmp_path: Path) -> None:
    """The script's value stays, where dynprof's own was in force when it set it."""
    script = """
    import sys, time, dynprof as dp
    dp.init("prof_config")
    while sys.getswitchinterval() > 0.001:
        dp.step()
    sys.setswitchinterval(0.01)
    while not dp.status().last_capture:
        dp.step()
    dp.shutdown()
    print(round(sys.getswitchinterval(), 4))
    """
    with RunningJob(tmp_path, script) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=1)
        assert job.end() == "0.01\n"


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_config_nested_deeper_than_a_stack(tmp_path: Path, opening: str) -> None:
    """A script may have set its recursion limit high; it is refused, and the job goes on."""
    with TroubledJob(tmp_path, "import sys; sys.setrecursionlimit(10**6)") as job:
        job.config.write_text(opening * 150_000)
        status = job.answer(1, "refused")
        assert "nested more than 32 levels deep" in status.edits[-1].text
        job.still_trains()
        job.ends_unharmed()


FEW_FILES = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0 if os.path.exists("few") else min(1024, hard), hard))
"""


def test_too_many_open_files_as_a_window_is_to_open(tmp_path: Path) -> None:
    """Its request is answered, not left waiting for ever; the next one is whole."""
    with TroubledJob(tmp_path, each=FEW_FILES) as job:
        step = job.when("steps", lambda status: status.step > 0).step
        job.edit(active=2, start_step=step + 2_000)
        job.when("the request", lambda status: status.state == "waiting")
        (tmp_path / "few").touch()
        wait_for("the window", lambda: "not opened: " in job.log() or None)
        (tmp_path / "few").unlink()
        status = job.answer(1, "failed")
        assert "too many open files" in next(one.text for one in status.edits if one.number == 1)
        job.edit(active=2, start_step=0)
        job.when("the next one", lambda status: status.edits[-1].outcome == "saved")
        job.ends_unharmed()


def test_small_stacks(tmp_path: Path) -> None:
    """What a script asks for threads of its own is too little for dynprof's, which had ended it."""
    with TroubledJob(tmp_path, "import threading; threading.stack_size(32_768)") as job:
        job.edit(active=2, analyse=True)
        job.answer(1, "saved")
        job.still_trains()
        job.ends_unharmed()


def test_a_package_that_is_removed_under_a_job(tmp_path: Path) -> None:
    """As by an upgrade: windows are served, what needs another process is refused in words."""
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
