"""``dynprof dump`` for jobs that hang, and the stacks that they write themselves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.integration.commands import dynprof
from tests.integration.launching import launched
from tests.integration.running import LOOP, RunningJob, wait_for
from tests.integration.scripts import ONE_RANK_HANGS

if TYPE_CHECKING:
    from collections.abc import Iterable

BEGINNING = """
import ctypes, os, threading, time, dynprof as dp
from dynprof.journal import stack_dump
from dynprof.session import periodic_checks
periodic_checks.stuck_after_s = stack_dump.stuck_after_s = lambda *_: 1.0  # half a minute otherwise
periodic_checks.SAMPLES, periodic_checks.MIN_RUNNING_SAMPLES = 2, 1
dp.init("prof_config")
def take_steps():
    for _ in range(10):
        time.sleep(0.05)
        dp.step()
"""
"""The beginning of a job whose steps may take a second."""
TWO_LOCKS = (
    BEGINNING
    + """
first, second = threading.Lock(), threading.Lock()
both_have_one = threading.Barrier(2)

def refill():
    with second:
        both_have_one.wait()
        with first:
            pass

def take():
    with first:
        both_have_one.wait()
        with second:
            pass

take_steps()
threading.Thread(target=refill, name="refill").start()
take()
"""
)
TRAINS_IN_A_THREAD = (
    BEGINNING
    + """
def fetch_from_store():
    open("go").close()  # a pipe

def train():
    for _ in range(5):  # after a second the thread is known
        take_steps()
    fetch_from_store()

thread = threading.Thread(target=train, name="trainer")
thread.start()
thread.join()
"""
)
EVALUATION = (
    BEGINNING
    + """
def evaluate():
    open("go").close()  # a pipe

take_steps()
evaluate()
while True:
    take_steps()
"""
)
LONG_STEP = (
    BEGINNING
    + """
def evaluate():
    while not os.path.exists("go"):
        sum(range(100))

periodic_checks.stuck_after_s = lambda *_: 4.0  # a few looks
take_steps()
evaluate()
while True:
    take_steps()
"""
)
ONE_EVALUATES = (
    BEGINNING
    + """
def evaluate():
    while not os.path.exists("../hang"):
        sum(range(100))
    time.sleep(1000)

def barrier():
    time.sleep(1000)

periodic_checks.stuck_after_s = lambda *_: 4.0  # a few looks
take_steps()
evaluate() if os.environ["RANK"] == "0" else barrier()
"""
)
HOLDS_THE_GIL = (
    BEGINNING
    + """
def convolve():
    open("begun", "w").close()
    ctypes.PyDLL(None).sleep(1000)

take_steps()
if os.environ.get("RANK") != "1":
    convolve()
while True:
    take_steps()
"""
)
MANY_THREADS = (
    BEGINNING
    + """
def descend(depth):
    return descend(depth - 1) if depth else time.sleep(1000)

take_steps()
secret = "hunter2"
for number in range(250):
    threading.Thread(target=descend, args=(5,), name=f"reader-{number}", daemon=True).start()
descend(500)
"""
)
STUCK_WORKER = (
    BEGINNING.replace("dp.init", "import torch\ndp.init")
    + """
class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, number):
        return torch.ones(2) if number < 60 else self.decode()
    def decode(self):
        while True:
            time.sleep(1)

for batch in torch.utils.data.DataLoader(Images(), batch_size=4, num_workers=1):
    dp.step()
"""
)


def files_of_stacks(root: Path, step: int = 0) -> list[Any]:
    """Return the stacks that are complete, from a step on, in the order of ranks."""
    paths = sorted((root / "log").glob("*.stacks"), key=lambda path: path.name[-15:])
    found = [json.loads(path.read_text()) for path in paths]
    return [one for one in found if one["complete"] and one["step"] >= step]


def written(root: Path, step: int, count: int = 1) -> list[Any]:
    """Wait for the stacks of some ranks; on a slow machine there may be some of earlier steps."""
    wait_for("the stacks", lambda: len(files_of_stacks(root, step)) >= count or None)
    return files_of_stacks(root, step)


def functions(stack: Iterable[str]) -> list[str]:
    """Return the functions of a stack, the innermost first."""
    return [frame.partition(" (")[0] for frame in stack]


def test_two_threads_that_wait_for_each_other(tmp_path: Path) -> None:
    """The job writes the stacks of both by itself; the log says where they are."""
    with RunningJob(tmp_path, TWO_LOCKS) as job:
        (dump,) = written(job.root, 10)
        stacks = {one["name"]: one["frames"] for one in dump["process"]["threads"]}
        assert functions(stacks["MainThread"])[0] == "take"
        assert functions(stacks["refill"])[0] == "refill"
        (path,) = (job.root / "log").glob("*.stacks")
        assert f"the stacks of {len(stacks)} threads are in log/{path.name}" in job.log()
        assert path.stat().st_mode & 0o007 == 0
        code, output, _ = dynprof("dump", job.root)
    assert code == 0
    assert re.match(r"rank 0 is in .*job\.py:\d+ in take\n", output)
    assert "\nrefill of rank 0\n    refill (" in output


def test_a_long_evaluation_is_named_and_not_judged(tmp_path: Path) -> None:
    """The log has a line when a step takes too long, with its place, and one when it ends."""
    os.mkfifo(tmp_path / "go")
    with RunningJob(tmp_path, EVALUATION) as job:
        (dump,) = written(job.root, 10)
        assert dump["step"] == 10
        code, output, _ = dynprof("dump", job.root)
        assert (code, " in evaluate\n" in output) == (0, True)
        (tmp_path / "go").write_text("")
        wait_for("its next step", lambda: "no longer stuck: step 10 " in job.log() or None)
        log = job.log()
    assert log.count("stuck: step 10 has taken ") == 1
    assert re.search(r"the training thread is in \S*job\.py:\d+ in evaluate; the stacks of ", log)
    assert "deadlock" not in log + output


def test_a_long_step_that_computes_is_not_stuck(tmp_path: Path) -> None:
    """It runs Python code; log and status name its place, and it has no exit code of its own."""
    with RunningJob(tmp_path, LONG_STEP) as job:
        wait_for("the line", lambda: "long: step 10 has taken " in job.log() or None)
        status = job.when("its progress", lambda status: status.training_thread_runs)
        assert status.health(status.heartbeat) == "alive"
        (tmp_path / "go").touch()
        wait_for("its end", lambda: "the long step 10 took " in job.log() or None)
        log = job.log()
    assert re.search(r"the training thread runs, now in .*job\.py:\d+ in evaluate", log)
    assert "stuck" not in log


def test_a_rank_that_waits_for_an_evaluation_of_rank_0_is_not_stuck(tmp_path: Path) -> None:
    """It is only long, until rank 0 computes no more."""
    script = ONE_EVALUATES.replace('"prof_config"', repr(str(tmp_path / "prof_config")))
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    ranks = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    with RunningJob(tmp_path / "0", script, **ranks[0]) as first:
        first.root = tmp_path / "prof_config"
        first.when("its progress", lambda status: status.training_thread_runs)
        with RunningJob(tmp_path / "1", script, **ranks[1]) as second:
            second.root = first.root
            said = "rank 0 computes, and the training thread waits in "
            wait_for("the line", lambda: said in second.log(1) or None)
            status = second.when("its wait", lambda status: status.waits_for == "rank 0", rank=1)
            assert status.health(status.heartbeat) == "alive"
            assert "stuck" not in first.log() + second.log(1)
            (tmp_path / "hang").touch()
            wait_for("the hang of rank 0", lambda: "stuck: step 10 " in first.log() or None)
            wait_for("that of rank 1", lambda: "stuck: step 10 " in second.log(1) or None)
            second.when("its state", lambda status: not status.waits_for, rank=1)


def test_a_training_loop_in_another_thread_is_the_one_that_is_named(tmp_path: Path) -> None:
    """The main thread only waits for it, as in Ray Train."""
    os.mkfifo(tmp_path / "go")
    with RunningJob(tmp_path, TRAINS_IN_A_THREAD) as job:
        job.when("its steps", lambda status: status.step >= 50)
        wait_for("its call", lambda: ("fetch_from_store" in dynprof("dump", job.root)[1]) or None)
        output = dynprof("dump", job.root)[1]
        (tmp_path / "go").open("w").close()
    assert re.match(r"rank 0 is in \S*job\.py:\d+ in fetch_from_store\n", output)


def test_the_rank_that_died_first_is_named_by_the_one_before(tmp_path: Path) -> None:
    """A launcher ends the others soon. The signal is known until its parent asks for it."""
    shared = LOOP.replace('"prof_config"', repr(str(tmp_path / "prof_config")))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    local = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with (
        RunningJob(tmp_path / "a", shared, RANK="0", LOCAL_RANK="0", **local) as first,
        RunningJob(tmp_path / "b", shared, RANK="1", LOCAL_RANK="1", **local) as second,
    ):
        first.root = second.root = tmp_path / "prof_config"
        files = Path(f"/proc/{first.process.pid}/fd")
        wait_for("its wait", lambda: any("pidfd" in link for link in links(files)) or None)
        second.process.kill()
        said = rf"rank 1 \(process {second.process.pid}\) died( of SIGKILL)?, in about step "
        wait_for("the line", lambda: re.search(said, first.log(0)))
        first.when("its status", lambda status: bool(status.death))
        first.process.kill()
        first.process.wait()
        output = dynprof("status", first.root)[1]
    assert re.search(rf"rank 0 saw at \S+ that {said}", output)


def links(folder: Path) -> list[str]:
    """Return what the links in a folder point to."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            found.append(str(path.readlink()))
    return found


def test_a_call_that_holds_the_gil_is_read_from_outside(tmp_path: Path) -> None:
    """The process cannot answer; its stacks come from py-spy, which names the holder."""
    with RunningJob(tmp_path, HOLDS_THE_GIL) as job:
        wait_for("its call", lambda: (tmp_path / "begun").exists() or None)
        code, output, errors = dynprof("dump", job.root)
        assert (code, errors) == (0, "")
        (dump,) = files_of_stacks(job.root)
        path = job.root / "status" / "rank_0.json"
        long = {"heartbeat": time.time(), "since_last_step_s": 40.0, "longest_s": 1.0}
        path.write_text(json.dumps({**json.loads(path.read_text()), **long}))
        code, _, errors = dynprof("status", job.root)
    assert re.match(r"rank 0 is in .*job\.py:\d+ in convolve\n", output)
    assert "rank 0 does not answer since " in output
    assert ": a call holds the GIL, the disk does not answer, or " in output
    assert code == 7
    assert re.match(r"rank 0 is stuck: rank 0 is in .* in convolve; dynprof dump ", errors)
    assert "MainThread of rank 0, which holds the GIL\n    convolve (" in output
    assert (dump["taken_by"], dump["process"]["state"]) == ("py-spy", "sleeping")


def test_a_stopped_process_is_read_and_stays_stopped(tmp_path: Path) -> None:
    """The output says that it is stopped and how it continues, which it can do."""
    with RunningJob(tmp_path, LOOP) as job:
        step = job.when("a step", lambda status: status.longest_s is not None).step
        job.process.send_signal(signal.SIGSTOP)
        process = psutil.Process(job.process.pid)
        wait_for("its stop", lambda: process.status() == "stopped" or None)
        code, output, _ = dynprof("dump", job.root)
        assert process.status() == "stopped"
        job.process.send_signal(signal.SIGCONT)
        job.when("its next steps", lambda status: status.step > step + 500)
    assert code == 0
    assert f": it is stopped (SIGSTOP); kill -CONT {job.process.pid} continues it" in output
    assert "MainThread of rank 0\n    <module> (" in output


def test_hundreds_of_threads_and_deep_recursion_are_bounded(tmp_path: Path) -> None:
    """The main thread is always there; the rest is counted. No value of a variable is kept."""
    with RunningJob(tmp_path, MANY_THREADS) as job:
        (dump,) = written(job.root, 10)
        output = dynprof("dump", job.root)[1]
        text = next((job.root / "log").glob("*.stacks")).read_text()
    main, *others = dump["process"]["threads"]
    assert (len(others), dump["process"]["left_out"] > 50) == (199, True)
    assert (main["name"], len(main["frames"])) == ("MainThread", 101)
    assert re.fullmatch(r"\.\.\. 4\d\d frames are left out \.\.\.", main["frames"][70])
    assert "<module>" in functions(main["frames"])[-30:]
    assert "hunter2" not in text
    assert re.search(r"\nreader-\d+ of rank 0; reader-.*; and 1\d\d more\n    descend \(", output)


@pytest.mark.slow
def test_a_stuck_data_loader_worker_is_named(tmp_path: Path) -> None:
    """The job reads its child processes with py-spy by itself."""
    with RunningJob(tmp_path, STUCK_WORKER) as job:
        (dump,) = written(job.root, 15)
        (worker,) = (one for one in dump["children"] if one["name"] == "pt_data_worker")
        output = dynprof("dump", job.root)[1]
    (main,) = (one for one in worker["threads"] if one["name"] == "MainThread")
    assert functions(main["frames"])[:2] == ["Images.decode", "Images.__getitem__"]
    said = rf"child {worker['pid']} of rank 0 \(pt_data_worker, \w+\) is in .* in decode\n"
    assert re.search(said, output)


@pytest.mark.slow
def test_the_rank_for_which_the_others_wait_is_named_first(tmp_path: Path) -> None:
    """Four ranks of torchrun: one fetches, and the others wait in a collective."""
    with launched(tmp_path, ONE_RANK_HANGS, "--standalone", "--nproc-per-node=4"):
        dumps = written(tmp_path / "prof_config", 40, 4)
        code, output, _ = dynprof("dump", tmp_path / "prof_config")
        told = json.loads(dynprof("dump", tmp_path / "prof_config", "--json")[1])
    assert [one["taken_by"] for one in dumps] == ["the job"] * 4
    first, second, *_ = output.splitlines()
    assert code == 0
    assert re.fullmatch(r"rank 2 is in .*job\.py:\d+ in fetch_from_store", first)
    assert re.fullmatch(r"ranks 0 to 1, 3 wait in all_reduce \(distributed_c10d\.py:\d+\)", second)
    assert told["summary"] == [first, second]
    assert "rank 0: gloo:all_reduce number 41 of group " in output
    assert "rank 2: gloo:" not in output


def test_a_silent_rank_is_read_by_the_next_one(tmp_path: Path) -> None:
    """A call holds the GIL of rank 0; rank 1 on the same machine saves its stacks by itself."""
    shared = HOLDS_THE_GIL.replace('"prof_config"', repr(str(tmp_path / "prof_config")))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    local = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    local["DYNPROF_ON_EVENT"] = f"sh -c 'cat >> {tmp_path}/events'"
    with (
        RunningJob(tmp_path / "a", shared, RANK="0", LOCAL_RANK="0", **local) as silent,
        RunningJob(tmp_path / "b", shared, RANK="1", LOCAL_RANK="1", **local) as following,
    ):
        silent.root = following.root = tmp_path / "prof_config"
        said = r"rank 0 does not answer since .* in convolve; its stacks are in log/"
        wait_for("the line", lambda: re.search(said, following.log(1)))
        said_to = tmp_path / "events"
        text = wait_for("the event", lambda: (said_to.exists() and said_to.read_text()) or None)
        event = json.loads(text)
        about = event["event"], event["rank"], event["pid"]
        assert about == ("stuck", 0, silent.process.pid)
        (dump,) = files_of_stacks(silent.root)
    assert (dump["rank"], dump["taken_by"]) == (0, "py-spy")
    assert functions(dump["process"]["threads"][0]["frames"])[0] == "convolve"


def test_a_process_that_only_a_status_file_names_is_not_read(tmp_path: Path) -> None:
    """Another user may have written the file; the exit code says that some rank is missing."""
    with RunningJob(tmp_path, LOOP) as job:
        job.when("a step", lambda status: status.longest_s is not None)
        job.process.send_signal(signal.SIGSTOP)
        process = psutil.Process(job.process.pid)
        wait_for("its stop", lambda: process.status() == "stopped" or None)
        path = job.root / "status" / "rank_0.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": os.getpid()}))
        code, output, errors = dynprof("dump", job.root)
    assert (code, output) == (4, "\n")
    assert f"rank 0 (process {os.getpid()} on " in errors
    assert "does not answer, and is no process that this user may read" in errors
