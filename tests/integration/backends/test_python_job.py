"""A plain Python loop, without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import dynprof
from tests import processes
from tests.integration.running import RunningJob, steps_in
from tests.integration.scripts import events, manifests, run_without_torch

JOB = """
import sys, time, dynprof as dp
def load(n):
    return list(range(n))
def train(batch):
    return sum(x * x for x in batch)
dp.init("prof_config")
while not (dp.status().last_capture and {count} <= 1):
    train(load(500))
    time.sleep(0.001)
    dp.step()
print("torch" in sys.modules)
"""


def own_functions(trace: Any) -> set[str]:
    """Return functions of dynprof's files in a capture, on the training thread.

    dynprof's own threads have some as well, under their names.
    """
    home = str(Path(dynprof.__file__).parent)
    names = (event["name"] for event in trace["traceEvents"] if event["tid"] == event["pid"])
    return {name.split(" ")[0] for name in names if f"({home}/" in name}


def test_calls_of_exactly_the_requested_steps_are_recorded(tmp_path: Path) -> None:
    """Every call of the recorded steps is there, none of the warm-up, and torch is not loaded."""
    with RunningJob(tmp_path, JOB.format(count=1)) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=3, warmup=2)
        manifest, trace = job.capture()
        assert job.end().strip() == "False"
    assert manifest.backend == "python"
    assert set(manifest.versions) == {"python", "viztracer"}
    first = manifest.steps.first
    assert steps_in(trace) == [first, first + 1, first + 2]
    names = [event["name"].split(" ")[0] for event in trace["traceEvents"]]
    assert names.count("train") == 3
    assert names.count("load") == 3
    assert own_functions(trace) <= {"step", "status", "_running"}
    assert trace["distributedInfo"]["rank"] == 0


def test_without_warm_up_the_opening_step_call_is_not_recorded(tmp_path: Path) -> None:
    """The recording begins before that step() returns; the rest of step() is not the job's call."""
    with RunningJob(tmp_path, JOB.format(count=1)) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=3, warmup=0)
        _, trace = job.capture()
        job.end()
    assert own_functions(trace) <= {"step", "status", "_running"}
    names = {event["name"].split(" ")[0] for event in trace["traceEvents"]}
    assert "train" in names
    assert "LogRecord.__init__" not in names


MARKED = """
import time, dynprof as dp, dynprof.mstx as mstx
def inner():
    return sum(range(100))
@mstx.annotate()
def work():
    for _ in range(5): inner()
def batches():
    while True:
        inner()
        yield 1
dp.init("prof_config")
for _ in dp.phases.iterate(batches()):
    work()
    time.sleep(0.001)
    dp.step()
"""


def test_calls_through_dynprof_functions_are_recorded(tmp_path: Path) -> None:
    """An annotated function and a loader in a phase are recorded with every call."""
    with RunningJob(tmp_path, MARKED) as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(active=3, warmup=1)
        _, trace = job.capture()
    names = [event["name"].split(" ")[0] for event in trace["traceEvents"]]
    counts = {name: names.count(name) for name in ("work", "inner", "builtins.sum", "time.sleep")}
    assert counts == {"work": 3, "inner": 18, "builtins.sum": 18, "time.sleep": 3}


def test_torch_is_refused_if_the_job_has_not_imported_it(tmp_path: Path) -> None:
    """A request for torch is refused if the job has not imported it; dynprof does not import it."""
    with RunningJob(tmp_path, JOB.format(count=2)) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(backend="torch")
        status = job.when("the refusal", lambda status: bool(status.problems))
        assert "this process has not imported torch" in status.problems[0]
        assert job.process.poll() is None


def test_a_ranks_files_carry_its_number(tmp_path: Path) -> None:
    """With RANK in the environment the log, status and capture have that rank."""
    with RunningJob(tmp_path, JOB.format(count=2), RANK="5", WORLD_SIZE="8") as job:
        job.when("training", lambda status: status.rank == 5, rank=5)
        job.edit(ranks="0-3")
        job.when("the word", lambda _: "rank 5 is not selected" in job.log(5), rank=5)
        job.edit(ranks="4-7", active=1)
        manifest, trace = job.capture(2)
        assert (manifest.rank, manifest.world_size) == (5, 8)
        assert trace["distributedInfo"] == {"backend": "none", "rank": 5, "world_size": 8}
        assert (job.root / "status" / "rank_5.json").exists()


SCRIPT = """
from dynprof.profiler import profile, tensorboard_trace_handler
handler = tensorboard_trace_handler("result", analyse_flag=False)
with profile(backend="python", on_trace_ready=handler):
    sum(range(10))
"""


def test_a_script_ends_without_error_output(tmp_path: Path) -> None:
    """A recording causes no error when Python unloads modules.

    Python 3.10 and 3.11 printed ``Exception ignored in m_clear of ...`` of another module.
    """
    done = processes.run([sys.executable, "-c", SCRIPT], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.glob("result/*.trace.json"))) == 1


PROFILES = """
import cProfile, pstats
def called():
    pass
def calls(profile):
    found = pstats.Stats(profile).stats.items()
    return sum(counts[0] for (_, _, name), counts in found if name == "called")
"""


def test_a_profiler_that_the_script_starts_in_a_window(tmp_path: Path) -> None:
    """The script's profiler counts every call, also after the window, and raises no exception."""
    run_without_torch(
        tmp_path,
        PROFILES + "mine = cProfile.Profile()\n"
        """
window(active=2)
dp.step()
mine.enable()
called()
dp.step()
called()
mine.disable()
idle()
assert calls(mine) == 2, calls(mine)
window(active=1)
dp.step()
idle()
assert not dp.status().problems, dp.status()
""",
    )


def test_a_profile_function_that_the_script_sets_in_a_window(tmp_path: Path) -> None:
    """The function stays, on the thread that closes the window and on others."""
    run_without_torch(
        tmp_path,
        """
        begun, end = threading.Event(), threading.Event()
        mine = lambda *_: None
        def other():
            sys.setprofile(mine)
            begun.set()
            end.wait()
            found.append(sys.getprofile())
        found = []
        window(active=1)
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        sys.setprofile(mine)
        dp.step()
        idle()
        assert sys.getprofile() is mine
        end.set()
        thread.join()
        assert found == [mine]
        """,
    )


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="only the thread that opened it may close it"
)
def test_a_window_that_another_thread_closes(tmp_path: Path) -> None:
    """No thread's calls are traced any more, and each thread may open the next window."""
    run_without_torch(
        tmp_path,
        """
        found = []
        def other():
            end.wait()
            found.append(sys.getprofile())
        for _ in range(2):
            end = threading.Event()
            window(active=1)
            threads = [threading.Thread(target=other), threading.Thread(target=dp.step)]
            for thread in threads:
                thread.start()
            threads[1].join()
            idle()
            assert sys.getprofile() is None
            end.set()
            threads[0].join()
        assert found == [None, None]
        assert not dp.status().problems, dp.status()
        """,
    )


def test_threads_that_begin_in_a_window(tmp_path: Path) -> None:
    """Each window records the calls of these threads, not only the first one."""
    run_without_torch(
        tmp_path,
        """
        def called_there():
            pass
        for _ in range(2):
            window(active=1)
            thread = threading.Thread(target=called_there)
            thread.start()
            thread.join()
            dp.step()
            idle()
        """,
    )
    for manifest in manifests(tmp_path):
        names = [event["name"].split(" ")[0] for event in events(tmp_path, manifest)]
        assert names.count("called_there") == 1
