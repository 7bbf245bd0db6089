"""``dynprof status`` for jobs that train, hang, or have not started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING

import psutil

from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.runtime.layout import host_name, pid_namespace
from tests.integration.commands import dynprof
from tests.integration.running import LOOP, RunningJob, wait_for
from tests.integration.troubled import small_disk
from tests.processes import start
from tests.users import ALICE, CHECKOUT, COMMAND, PACKAGES, PYTHON, as_root, others_run_python

if TYPE_CHECKING:
    from pathlib import Path


def test_status_of_all_ranks(tmp_path: Path) -> None:
    """Each rank has a line: alive, dead or stopped, the last problem and the last capture."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    shared = LOOP.replace('"prof_config"', repr(str(tmp_path / "prof_config")))
    with RunningJob(tmp_path / "a", shared, RANK="0", WORLD_SIZE="2") as first:
        with RunningJob(tmp_path / "b", shared, RANK="1", WORLD_SIZE="2") as second:
            first.root = second.root = tmp_path / "prof_config"
            for rank, one in enumerate((first, second)):
                one.when("training", lambda status: status.state == "idle", rank)
            code, output, errors = dynprof("arm", first.root, "--ranks", "1", "--wait")
            assert (code, errors.splitlines()[0].endswith("requested from 1 live rank")) == (
                0,
                True,
            )
            assert "rank_1.info.json" in output
        wait_for("its death", lambda: "dead" in dynprof("status", first.root)[1] or None)
        code, output, _ = dynprof("status", first.root)
        lines = output.splitlines()
        assert code == 0
        assert lines[0].split()[:4] == ["rank", "process", "health", "profiler"]
        assert "alive" in lines[1]
        assert "dead for" in lines[2]
        assert f"rank 1: last capture: {first.root}/step_" in "".join(lines)
        code, output, _ = dynprof("status", first.root, "--json")
        ranks = json.loads(output)["ranks"]
        assert [(rank["rank"], rank["health"]) for rank in ranks] == [(0, "alive"), (1, "dead")]


MARCHING = """
import time, dynprof as dp
dp.init("prof_config")
step = int(50 * time.time())
dp.set_state({"cur_step": step})
while True:
    time.sleep(0.01)
    while step < int(50 * time.time()):
        step += 1
        dp.step()
"""
"""The time determines the step: each takes 20 ms, and ranks keep pace."""


def test_ranks_that_keep_pace_are_shown_at_the_same_step(tmp_path: Path) -> None:
    """Ranks write at different moments; status shows each at the step of the same moment."""
    with RunningJob(tmp_path, MARCHING, RANK="0") as first:
        first.when("its first status", lambda status: status.step > 0)
        time.sleep(2)  # each writes every five seconds
        with RunningJob(tmp_path, MARCHING, RANK="1") as second:
            second.when("its way so far", lambda status: len(status.recent_steps) > 6, 1)
            _, shown, _ = dynprof("status", first.root, "--json")
            of_this_machine = dynprof("status")[1]
    found = json.loads(shown)
    written, steps = ([rank[key] for rank in found["ranks"]] for key in ("step", "step_at_moment"))
    assert abs(written[0] - written[1]) > 40, "the ranks have written at the same moment"
    assert abs(steps[0] - 50 * found["moment"]) < 30, (found["moment"], steps)
    assert abs(steps[0] - steps[1]) < 30
    assert re.search(r"step \d s ago", of_this_machine)


def test_a_stopped_process_is_stuck_and_not_dead(job: RunningJob) -> None:
    """A stopped process exists but does not write; the wait ends, and the process can continue."""
    job.when("a step", lambda status: status.longest_s is not None)
    path = job.root / "status" / "rank_0.json"
    job.process.send_signal(signal.SIGSTOP)
    wait_for("its stop", lambda: psutil.Process(job.process.pid).status() == "stopped" or None)
    old = {**json.loads(path.read_text()), "since_last_step_s": 40.0, "heartbeat": time.time()}
    path.write_text(json.dumps(old))  # as if it had been stopped for a long time
    code, output, errors = dynprof("status", job.root)
    assert code == 7
    assert re.search(r"stuck for \d\d", output)
    assert re.search(r"rank 0 is stuck; dynprof dump \S+ shows all stacks", errors)
    assert ": it is stopped (SIGSTOP); kill -CONT " in output
    code, _, errors = dynprof("status")
    assert code == 7
    assert re.search(rf"stuck: process .*\b{job.process.pid}\b", errors)
    code, _, errors = dynprof("arm", job.root, "--active", 2, "--wait")
    assert code == 5
    assert "rank 0: has not answered; its step counter has not moved for " in errors
    assert errors.splitlines()[-1].startswith("stopped waiting (a rank makes no progress); ")
    job.process.send_signal(signal.SIGCONT)
    assert job.capture()[0].complete
    job.process.kill()
    job.process.wait()
    _, output, _ = dynprof("status", job.root)
    assert "dead" in output


def test_a_full_disk_makes_no_rank_stuck(tmp_path: Path) -> None:
    """The status is old because it cannot be written; status says so, and exits with 0."""
    here = {"host": host_name(), "pid": 1, "pid_namespace": pid_namespace()}
    old = {"state": "idle", **here, "heartbeat": time.time() - 60}
    with small_disk(tmp_path / "full", "1m"):
        root = tmp_path / "full" / "prof_config"
        (root / "status").mkdir(parents=True)
        (root / "status" / "rank_0.json").write_text(json.dumps(old))
        with contextlib.suppress(OSError), (root.parent / "rest").open("wb", 0) as file:
            file.write(bytes(1 << 20))
        code, output, errors = dynprof("status", root)
    assert (code, "unknown for 6" in output, errors) == (0, True, "")
    assert "rank 0: cannot write its status since " in output
    assert ": the disk is full" in output


FAILING = """
import atexit, pathlib, time, dynprof as dp
def flush():
    while pathlib.Path("prof_config").exists() and not pathlib.Path("go").exists():
        time.sleep(0.01)
atexit.register(flush)
dp.init("prof_config")
for _ in range(5):
    time.sleep(0.01)
    dp.step()
"""
"""A job of five steps that waits for a file after its session has ended."""


def test_an_exception_that_ends_the_script_is_a_failure(tmp_path: Path) -> None:
    """Its type and place are in the log as a warning and in the status, its message is not."""
    script = FAILING.replace("atexit.register(flush)", "") + "raise RuntimeError('S3CRET')"
    with RunningJob(tmp_path, script, through=[sys.executable]) as job:
        assert job.process.wait() == 1
        code, output, errors = dynprof("status", job.root)
        log = job.log()
    failure = f"RuntimeError at {tmp_path}/job.py:{script.count(chr(10)) + 1} in <module>"
    assert (code, " failed " in output) == (3, True)
    assert re.search(rf"rank 0: failed at [\d:]+: {re.escape(failure)}", " ".join(output.split()))
    assert re.search(rf"failed at [\d:.]+: {re.escape(failure)}", errors)
    assert re.search(rf"WARNING rank 0  failed at step 5: {re.escape(failure)} ended the ", log)
    assert "S3CRET" not in log + output + errors


def test_a_process_that_hangs_after_its_script_is_exiting(tmp_path: Path) -> None:
    """Functions of atexit may take long; the session has ended then, and the job trains no more."""
    with RunningJob(tmp_path, FAILING, through=[sys.executable]) as job:
        job.when("its end", lambda status: status.state == "stopped")
        code, output, errors = dynprof("status", job.root)
        (tmp_path / "go").touch()
        assert job.process.wait() == 0
    assert (code, " exiting " in output) == (3, True)
    assert "the process has not exited: it is in an atexit function; py-spy dump --pid " in errors


HANGING = """
import os, socket, threading, time, dynprof as dp
from dynprof.session import periodic_checks
periodic_checks.stuck_after_s = lambda *_: 0.5  # half a minute otherwise
dp.init("prof_config")
near, far = socket.socketpair()
far.sendall(b"*" * 100)

def send_more():
    while not os.path.exists("go"):
        time.sleep(0.01)
    far.sendall(b"*")

threading.Thread(target=send_more, daemon=True).start()
while True:
    near.recv(1)
    dp.step()
"""
"""A loop whose hundredth batch does not come until a file exists."""


def test_a_step_that_does_not_end_is_in_the_log_with_its_line(tmp_path: Path) -> None:
    """The log has it once, and again when the step ends; the status shows the line until then."""
    with RunningJob(tmp_path, HANGING) as job:
        status = job.when("its standstill", lambda status: bool(status.stuck_at))
        assert status.stuck_at.startswith(f"{tmp_path}/job.py:")
        (tmp_path / "go").touch()
        job.when("its next step", lambda status: status.step == 101)
        wait_for("the line of its end", lambda: "no longer stuck: step 100 " in job.log() or None)
        log = job.log()
    assert log.count("stuck: step 100 has taken ") == 1
    assert log.count("no longer stuck: step 100 ended after ") == 1
    assert status.stuck_at in log


def test_the_first_step_is_not_stuck(tmp_path: Path) -> None:
    """A job without a step is starting, with the duration; a waiting command says so."""
    script = LOOP.replace("while True:", "import pathlib\nwhile True:").replace(
        "    time.sleep(0.01)",
        '    while dp.status().step == 0 and not pathlib.Path("go").exists(): time.sleep(0.01)',
    )
    with RunningJob(tmp_path, script) as job:
        job.when("its start", lambda status: status.longest_s is None)
        code, output, _ = dynprof("status", job.root)
        assert (code, "starting for " in output) == (0, True)
        code, _, errors = dynprof("arm", job.root, "--active", 2, "--wait", "--timeout", 1)
        assert code == 5
        assert "1 rank is still in its first step; a window opens after it" in errors
        assert "it is in its first step for " in errors
        (tmp_path / "go").touch()
        assert job.capture()[0].complete
        job.when("its second step", lambda status: status.longest_s is not None)
        assert "alive" in dynprof("status", job.root)[1]


def test_status_names_a_limited_number_of_unsent_captures(tmp_path: Path) -> None:
    """Captures of a killed job with many ranks are named up to a limit, and counted."""
    manifest = Manifest(
        dynprof="0", backend="fake", versions={}, host="other", pid=42, rank=0, world_size=1,
        request=RequestRecord(number=1, edited_at="", sha256="", config={"prof_dir": "s3://a/b"}),
        steps=Steps(first=1, last=2, recorded=2, warmup=0), activities=("CPU",), opened_at="",
        closed_at="", complete=True, cost=Cost(open_ms=0, close_ms=0),
    )  # fmt: skip
    for pid in range(20):
        info = tmp_path / "outgoing" / f"other_{pid}.rank0" / "step_1-2_20260101T000000Z" / "info"
        info.mkdir(parents=True)
        manifest.save(info / "rank_0.info.json")
        os.utime(info / "rank_0.info.json", (1e9, 1e9))
    (tmp_path / "profiler_config.json").write_text("{}")
    _, output, errors = dynprof("status", tmp_path)
    said = output + errors
    assert said.count("no job sends") == 16
    assert "4 more captures are not sent; --json lists all" in said
    named = json.loads(dynprof("status", tmp_path, "--json")[1])["left_behind"]
    assert len(named) == 20


WATCHING = "import dynprof as dp, time; dp.init('prof_config'); time.sleep(100)"


@as_root
@others_run_python
def test_a_job_with_output_in_a_folder_of_root_is_found(shared_tmp: Path) -> None:
    """This happens if a root service opens the log of a user's job; the user cannot stat it."""
    roots, own = shared_tmp / "log", shared_tmp / "own"
    roots.mkdir(mode=0o700)
    own.mkdir()
    ALICE.own(own)
    named = {"user": ALICE.uid, "group": ALICE.uid, "extra_groups": [], "cwd": own}
    env = {"PYTHONPATH": f"{CHECKOUT}:{PACKAGES}", "HOME": "/", "PATH": "/usr/bin"}
    command = [str(PYTHON), "-c", WATCHING]
    with (
        (roots / "job.log").open("w") as output,
        start(command, env=env, stdout=output, stderr=output, **named) as process,
    ):
        wait_for("the status", lambda: [*own.glob("prof_config/status/*.json")] or None)
        done = ALICE.python(COMMAND, "status", "--json")
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)["processes"]
        assert (found["pid"], found["directory"]) == (process.pid, str(own / "prof_config"))
        assert "another user" not in ALICE.python(COMMAND, "arm", str(process.pid)).stderr
