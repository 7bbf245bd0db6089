"""``dynprof attach``: processes without dynprof, attached while they run."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import json
import os
import signal
import sys
import venv
from pathlib import Path

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.errors import LaunchError
from dynprof.launch import stopped_thread
from dynprof.launch.attaching import REMOTE_EXEC, reach
from dynprof.runtime import stacks
from tests import processes, warm_interpreter
from tests.integration.commands import dynprof
from tests.integration.launch.attached import attached, begun, refusal
from tests.integration.launch.reaching import needs_reaching
from tests.integration.launch.unprepared import (
    LOOP,
    ended,
    is_stepping,
    logs,
    process_of_another_user,
)
from tests.integration.launching import end_well, launched, statuses, when
from tests.integration.ranks.agreeing import numbers_in_trace
from tests.integration.running import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attaching needs Linux")


@pytest.fixture(autouse=True)
def _is_allowed() -> None:
    needs_reaching()


def test_a_job_without_dynprof_is_attached_and_detached(tmp_path: Path) -> None:
    """The job is attached, captured with exactly the requested steps, detached, and continues."""
    with begun(tmp_path, LOOP) as process:
        output = attached(process, "--step-on", ":work")
        assert output.startswith(f"process {process.pid} watches {tmp_path}/prof_config. Its main ")
        is_stepping(tmp_path)
        code, output, errors = dynprof("arm", process.pid, "--active", 3, "--wait")
        assert code == 0, errors
        manifest = load_manifest(Path(output.strip()))
        assert (manifest.complete, manifest.steps.recorded) == (True, 3)
        code, output, errors = dynprof("detach", process.pid)
        assert (code, errors) == (0, "")
        assert f"process {process.pid} no longer watches {tmp_path}/prof_config." in output
        (status,) = statuses(tmp_path).values()
        assert status.state == "stopped"
        code, output, errors = dynprof("status", tmp_path / "prof_config")
        assert (code, "unwatched" in output) == (3, True)
        assert (
            f"the process is still running: dynprof attach {process.pid} watches it again" in errors
        )
        attached(process, "--step-on", ":work")  # and once more
        is_stepping(tmp_path)
        assert ended(tmp_path, process) == ""
    (text,) = logs(tmp_path)
    assert "attached from outside by process" in text
    assert "its main thread was stopped for" in text
    assert "stopped at step" in text


def test_the_losses_are_the_same_to_the_bit(tmp_path: Path) -> None:
    """A training that was attached, captured and detached computes the same losses as alone."""
    pytest.importorskip("torch", reason="torch is not installed")
    script = """
import torch, time
from pathlib import Path
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
losses = []
while len(losses) < 400 or not Path("enough").exists():
    losses.append(train())
    time.sleep(0.002)
Path("losses").write_text(repr(losses[:400]))
"""
    (alone := tmp_path / "alone").mkdir()
    (alone / "enough").touch()
    assert warm_interpreter.run(script, alone, os.environ).returncode == 0
    with begun(tmp_path, script, python="") as process:
        attached(process)
        is_stepping(tmp_path)
        (status,) = statuses(tmp_path).values()
        assert status.steps_from == "the optimizer SGD"
        code, _, errors = dynprof("arm", process.pid, "--active", 5, "--wait")
        assert code == 0, errors
        assert dynprof("detach", process.pid)[0] == 0
        ended(tmp_path, process)
    assert (tmp_path / "losses").read_text() == (alone / "losses").read_text()


def test_an_environment_without_dynprof(tmp_path: Path) -> None:
    """The job's Python lacks dynprof's dependencies; dynprof lends them for its own use only."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    script = (
        LOOP.replace("while not", "import importlib.util\nwhile not")
        + """
absent = [importlib.util.find_spec(name) is None for name in ("pytest", "rich")]
Path("found").write_text(repr(absent))
"""
    )
    with begun(tmp_path, script, tmp_path / "env/bin/python", PYTHONPATH="") as process:
        attached(process, "--step-on", ":work")
        is_stepping(tmp_path)
        code, _, errors = dynprof("arm", process.pid, "--active", 2, "--wait")
        assert code == 0, errors
        assert ended(tmp_path, process) == ""
    assert (tmp_path / "found").read_text() == "[True, True]"


def test_a_process_that_already_watches_is_refused(tmp_path: Path) -> None:
    """The error names the watched directory, nothing changes, and the job's session stays."""
    script = LOOP.replace("import sys, time", "import sys, time, dynprof as dp\ndp.init('mine')")
    with begun(tmp_path, script) as process:
        code, _, errors = dynprof("attach", process.pid)
        assert code == 4
        assert f"process {process.pid} watches {tmp_path}/mine already" in errors
        code, _, errors = dynprof("detach", process.pid)
        assert code == 4
        assert f"dynprof attach did not start its session in {tmp_path}/mine, which stays" in errors
        assert not (tmp_path / "prof_config").exists()
        ended(tmp_path, process)


def test_detach_of_a_process_without_a_session_is_an_error(tmp_path: Path) -> None:
    """The error says that the process has no session of dynprof."""
    with begun(tmp_path, LOOP) as process:
        code, _, errors = dynprof("detach", process.pid)
        said = f"process {process.pid} cannot be detached: it has no session of dynprof"
        assert (code, errors.strip()) == (4, said)
        ended(tmp_path, process)


def test_attach_times_out_if_the_process_does_not_run_python(tmp_path: Path) -> None:
    """The process is in C with the GIL; after the timeout nothing begins, now or later."""
    script = """
import ctypes, sys
from pathlib import Path
while True:
    while not Path("enough").exists():
        ctypes.PyDLL(None).usleep(3_000_000)
    break
print("dynprof" in sys.modules)
"""
    with begun(tmp_path, script) as process:
        with pytest.raises(LaunchError, match=r"has not run Python .* for 0\.1 s; nothing was cha"):
            reach(process.pid, {"action": "attach", "directory": "x", "steps": None}, 0.1)
        (tmp_path / "enough").touch()
        output, errors = process.communicate()
    assert (process.returncode, output, errors) == (0, "False\n", "")
    assert not (tmp_path / "prof_config").exists()


def test_attach_names_why_a_process_cannot_be_reached(tmp_path: Path) -> None:
    """The error has the reason: no process, no Python, another user, stopped, ended or debugged."""
    with processes.start(["sleep", "100"]) as process:
        assert refusal(process.pid).endswith("cannot be reached: it runs no Python\n")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert refusal(process.pid) == f"process {process.pid} has ended\n"
    assert "there is no process" in refusal(process.pid)
    with begun(tmp_path, LOOP) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for("its stop", lambda: "T (stopped)" in facts(process.pid) or None)
        assert "is stopped; kill -CONT" in refusal(process.pid)
        process.send_signal(signal.SIGCONT)
        debugging = f"""
import ctypes, time
assert ctypes.CDLL(None).ptrace(0x4206, {process.pid}, None, None) == 0
print("there", flush=True)
time.sleep(100)
"""
        with processes.start([sys.executable, "-c", debugging]) as debugger:
            assert debugger.stdout
            assert debugger.stdout.readline() == "there\n"
            text = refusal(process.pid)
            assert text == f"process {process.pid} is being debugged by process {debugger.pid}\n"
        assert ended(tmp_path, process) == ""
    if other := process_of_another_user():
        assert "belongs to another user; attach as that user" in refusal(other)


def facts(pid: int) -> str:
    """Return the system's status of a process."""
    return Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize(
    ("scope", "says"),
    [
        ("1", "or set sysctl kernel.yama.ptrace_scope=0 once"),
        ("2", "only root may"),
        (None, "SYS_PT"),
    ],
)
def test_attach_names_the_system_setting_that_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str | None, says: str
) -> None:
    """The error says what to do; the thread was never stopped."""
    if scope:
        (tmp_path / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr(stacks, "YAMA", tmp_path / "scope")

    def forbidden(*_: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    with begun(tmp_path, LOOP) as process:
        monkeypatch.setattr(stopped_thread._libc, "ptrace", forbidden)
        with pytest.raises(LaunchError, match=says):
            reach(process.pid, {"action": "attach", "directory": "x", "steps": None}, 5)
        assert ended(tmp_path, process) == ""


def test_another_version_of_python_is_named(tmp_path: Path) -> None:
    """The error says that dynprof is missing for that version."""
    here = sys.version_info[:2]
    found = [
        path
        for minor in range(10, 14)
        if (3, minor) != here
        for path in Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/python3")
    ]
    if not found:
        pytest.skip("no other version of Python is beside this one")
    with begun(tmp_path, LOOP, found[0], PYTHONPATH="") as process:
        text = refusal(process.pid)
        assert "install dynprof for Python 3." in text
        assert ended(tmp_path, process) == ""


def test_all_ranks_of_a_job(tmp_path: Path) -> None:
    """The script's name selects each rank, but neither the launcher nor forks of ranks."""
    pytest.importorskip("torch", reason="torch is not installed")
    name = f"train_{os.getpid()}.py"
    script = LOOP.replace(
        "while",
        "import os\nif os.fork() == 0:\n    "
        "while not Path('enough').exists(): time.sleep(0.1)\n    os._exit(0)\n"
        "Path('begun' + os.environ['RANK']).touch()\nwhile",
        1,
    )
    (tmp_path / name).write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with processes.start([*command, name], cwd=tmp_path, env=env, stdout=-3) as process:
        there = lambda: len(list(tmp_path.glob("begun*"))) == 2 or None  # noqa: E731
        wait_for("both ranks", there)
        code, output, _ = dynprof("status", "--all", "--json")
        others = json.loads(output)["others"]
        ranks = [one["pid"] for one in others if one["command"].endswith(name)]
        assert (code in (0, 3, 7), len(ranks), process.pid in ranks) == (True, 2, False)
        code, output, errors = dynprof("attach", "--all", name, "--step-on", ":work")
        assert code == 0, errors
        assert [f"process {pid} watches" in output for pid in ranks] == [True, True]
        ready = lambda now: [s.step > 2 for s in now.values()] == [True, True]  # noqa: E731
        assert set(when(tmp_path, "two ranks", ready)) == {"rank_0.json", "rank_1.json"}
        ended(tmp_path, process)


MARCHING = """
import itertools, os, random, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dice, flag = random.Random(dist.get_rank()), torch.zeros(1)
def work(number):
    with torch.profiler.record_function(f"Iteration#{number}"):
        time.sleep(0.03 * (1 + dice.random()))
        flag.fill_(os.path.exists("enough"))
        for _ in range(1 + number % 3 % 2 + (number % 50 == 0)):
            dist.all_reduce(flag)
for number in itertools.count():
    work(number)
    if number == 3:
        with open(f"begun{dist.get_rank()}", "w") as begun:
            begun.write(str(os.getpid()))
    if flag.item():
        break
"""


def pids_in(folder: Path) -> list[str]:
    """Return the pids that the ranks have written."""
    return [text for path in sorted(folder.glob("begun*")) if (text := path.read_text())]


def test_ranks_that_are_attached_one_after_the_other_record_the_same_steps(tmp_path: Path) -> None:
    """Each starts to count at another step; collectives show rank 0's step numbers."""
    pytest.importorskip("torch", reason="torch is not installed")
    with launched(tmp_path, MARCHING, "--standalone", "--nproc-per-node=3") as process:
        wait_for("the ranks", lambda: len(pids_in(tmp_path)) == 3 or None)
        for pid in pids_in(tmp_path):
            code, _, errors = dynprof("attach", pid, "--step-on", ":work")
            assert code == 0, errors
        ready = lambda now: all(s.step > 5 for s in now.values()) and len(now) == 3  # noqa: E731
        steps = [one.step for one in when(tmp_path, "three ranks", ready).values()]
        assert max(steps) - min(steps) > 3, steps
        for _ in range(2):
            code, _, errors = dynprof("arm", tmp_path / "prof_config", "--active", 3, "--wait")
            assert code == 0, errors
        (tmp_path / "enough").touch()
        end_well([process])
    traces = sorted((tmp_path / "prof_config").glob("step_*/*.gz"))
    recorded = [numbers_in_trace(path, "Iteration") for path in traces]
    assert [len(one) for one in recorded] == [3] * 6
    assert [recorded[0]] * 3 + [recorded[3]] * 3 == recorded


def test_a_path_selects_among_scripts_of_the_same_name(tmp_path: Path) -> None:
    """A bare name attaches to none of them. A path relative to the caller selects one job."""
    name = f"same_{os.getpid()}.py"
    script = LOOP.replace("while", "from pathlib import Path\nPath('begun').touch()\nwhile", 1)
    jobs = {}
    with contextlib.ExitStack() as running:
        for one in ("a", "b"):
            (tmp_path / one).mkdir()
            (tmp_path / one / name).write_text(script)
            jobs[one] = running.enter_context(
                processes.start([sys.executable, name], cwd=tmp_path / one)
            )
        there = lambda: len(list(tmp_path.glob("*/begun"))) == 2 or None  # noqa: E731
        wait_for("both jobs", there)
        code, output, errors = dynprof("attach", "--all", name, "--step-on", ":work")
        assert (code, output) == (4, ""), errors
        for one, process in jobs.items():
            assert f"process {process.pid} works in {tmp_path / one}\n" in errors
        assert f"Give a path, such as --all {tmp_path}/a/{name}, or one PID at a time\n" in errors
        assert dynprof("attach", "--all", f"./{name}")[0] == 3
        path = os.path.relpath(tmp_path / "a" / name)
        code, output, errors = dynprof("attach", "--all", path, "--step-on", ":work")
        assert (code, output.count(" watches ")) == (0, 1), errors
        assert f"process {jobs['a'].pid} watches {tmp_path}/a/prof_config" in output
        assert dynprof("detach", "--all", tmp_path / "a" / name)[0] == 0


TITLED = """
import ctypes, os
from pathlib import Path
begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
title = b"VLLM::Worker_%d" % os.getpid()
ctypes.memmove(begin, title.ljust(end - begin, b"\\0"), end - begin)
"""
"""Overwrites the command line, as ``setproctitle`` does."""


def test_a_process_is_attached_by_its_own_title(tmp_path: Path) -> None:
    """The title that ``status --all`` prints selects the process."""
    with begun(tmp_path, f"{TITLED}{LOOP}", **{"A" * 99: ""}) as process:
        title = f"VLLM::Worker_{process.pid}"
        others = json.loads(dynprof("status", "--all", "--json")[1])["others"]
        assert [one["pid"] for one in others if one["command"] == title] == [process.pid]
        code, output, errors = dynprof("attach", "--all", title, "--step-on", ":work")
        assert (code, f"process {process.pid} watches" in output) == (0, True), errors
        assert dynprof("detach", "--all", f"*er_{process.pid}")[0] == 0
        assert ended(tmp_path, process) == ""


def test_signals_during_an_attach_are_not_lost(tmp_path: Path) -> None:
    """Ten signals arrive right before the attach or detach: all are counted."""
    script = """
import signal, sys, time
from pathlib import Path
count = 0
def counts(*_):
    global count
    count += 1
    Path("count").write_text(str(count))
signal.signal(signal.SIGUSR1, counts)
while not Path("enough").exists():
    time.sleep(0.001)
"""
    with begun(tmp_path, script) as process:
        for number, action in enumerate(("attach", "detach") * 5, start=1):
            asked = {"action": action, "directory": str(tmp_path / "prof_config"), "steps": None}
            process.send_signal(signal.SIGUSR1)
            said = reach(process.pid, asked, 60).said
            assert set(said) & {"begun", "ended"}, said
            wait_for("the signal", functools.partial(is_counted, tmp_path, number))
        ended(tmp_path, process)


def is_counted(folder: Path, wanted: int) -> bool | None:
    """Return True once a script has counted this number of signals, otherwise None."""
    path = folder / "count"
    return (path.exists() and int(path.read_text() or 0) == wanted) or None


def test_ctrl_c_during_a_call_waits_until_the_thread_returns(tmp_path: Path) -> None:
    """The attaching command is interrupted while the job's thread runs a call."""
    attacher = """
import os, signal, subprocess, sys
from dynprof.launch import foreign_process
from dynprof.launch.stopped_thread import StoppedThread

signal.signal(signal.SIGINT, signal.default_int_handler)
pid = int(sys.argv[1])
files = foreign_process._mapped_files(pid)
libc = [path for path in files if "/libc" in path]
(sleep,) = foreign_process._addresses(pid, files, libc, ("usleep",)).values()
subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -INT {os.getpid()}"])
with StoppedThread(pid, 30) as thread:
    thread.call(sleep, 500_000)
    print("back", flush=True)
"""
    with begun(tmp_path, LOOP) as process:
        found = processes.run([sys.executable, "-c", attacher, str(process.pid)])
        assert found.stdout == "back\n"
        assert "KeyboardInterrupt" in found.stderr
        assert ended(tmp_path, process) == ""


def test_attach_uses_the_interface_of_this_python() -> None:
    """Python 3.14 has its own interface; these tests use it there."""
    assert hasattr(sys, "remote_exec") == (sys.version_info >= REMOTE_EXEC)
