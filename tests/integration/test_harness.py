"""Processes of tests end with them, however they end: pytest itself runs and is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tests import warm_interpreter
from tests.integration.running import wait_for
from tests.processes import ROOT, run, start

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import os, pathlib, subprocess, sys, time
def note():
    pathlib.Path(f"{os.getpid()}.pid").touch()
    time.sleep(1e6)
note_it = "import os, pathlib, time; pathlib.Path(f'{os.getpid()}.pid').touch(); time.sleep(1e6)"
subprocess.Popen([sys.executable, "-c", note_it], start_new_session=True)
if os.fork() == 0:  # an orphan
    if os.fork() == 0:
        os.setsid()
        note()
    os._exit(0)
os.wait()
note()
"""
"""A process, its child in another session, and an orphaned grandchild."""

FORKED = """
import os, time
os.fork()
os.fork()
open(f"{os.getpid()}.pid", "w").close()
time.sleep(1e6)
"""
"""A script, with forks of it and of its child."""

TESTS = f"""
import os, pathlib, signal, sys, time
from tests.processes import start

def begin():
    pathlib.Path("tester").write_text(str(os.getpid()))
    there = len(list(pathlib.Path().glob("*.pid")))
    process = start([sys.executable, "-c", {JOB!r}])
    while len(list(pathlib.Path().glob("*.pid"))) < there + 3:
        time.sleep(0.01)
    return process

def test_that_fails():
    begin()
    assert False, "on purpose"

def test_that_times_out():
    begin()
    signal.setitimer(signal.ITIMER_REAL, 0.01)  # as pytest-timeout does, for a later time
    time.sleep(1e6)

def test_that_hangs():
    begin()
    from tests import warm_interpreter
    text = {FORKED!r}
    warm_interpreter.run(text, pathlib.Path.cwd(), os.environ, needs=warm_interpreter.WITHOUT_TORCH)

def test_that_is_interrupted():
    begin()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1e6)

def test_that_interrupts():
    process = begin()
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT
"""
DEAF = ("sh", "-c", 'trap "" INT && exec "$@"', "sh")
"""The beginning of a command line for a program that ignores Ctrl-C."""


def pytest_with(folder: Path, *names: str, options: tuple[str, ...] = ()) -> list[str]:
    """Return the command line that runs some of the tests above."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\ntimeout = 1000\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options]
    return [*command, *(f"test_it.py::{name}" for name in names)]


def pids(folder: Path) -> set[int]:
    """Return the pids of the job's processes."""
    return {int(path.stem) for path in folder.glob("*.pid")}


def wait_for_their_end(numbers: set[int]) -> None:
    """Wait until processes are gone."""
    wait_for("their end", lambda: None if any(map(_runs, numbers)) else True)


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_processes_of_a_test_end_with_it(tmp_path: Path) -> None:
    """This includes processes in another session and orphans; they end before pytest does."""
    names = "test_that_fails", "test_that_times_out", "test_that_is_interrupted"
    done = run(pytest_with(tmp_path, *names), cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    for words in ("on purpose", "Failed: Timeout", "KeyboardInterrupt", " 2 failed"):
        assert words in done.stdout
    assert len(pids(tmp_path)) == 9
    assert not any(map(_runs, pids(tmp_path)))


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["pytest", "a worker of xdist"])
def test_processes_of_a_killed_test_end(tmp_path: Path, options: tuple[str, ...]) -> None:
    """After kill -9 of the testing process, only another process can clean up.

    It ends the processes that the test started, and a script in a fork of a warm interpreter.
    """
    with start(pytest_with(tmp_path, "test_that_hangs", options=options), cwd=tmp_path):
        wait_for("its processes", lambda: True if len(pids(tmp_path)) == 7 else None)
        os.kill(int((tmp_path / "tester").read_text()), signal.SIGKILL)
        wait_for_their_end(pids(tmp_path))


def test_processes_of_tests_can_be_interrupted(tmp_path: Path) -> None:
    """This holds even if the tests run in the background and ignore Ctrl-C."""
    names = "test_that_interrupts", "test_that_is_interrupted"
    done = run([*DEAF, *pytest_with(tmp_path, *names)], cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("unloads", [True, False])
def test_a_script_in_a_warm_interpreter_ends_as_in_a_new_one(tmp_path: Path, unloads: bool) -> None:
    """Output, working directory, environment and end are the script's own."""
    pytest.importorskip("torch", reason="torch is not installed")
    text = """
import atexit, os, sys, threading
atexit.register(print, "what is registered is done")
print(os.getcwd(), os.environ["TOLD"], __name__, "torch" in sys.modules)
threading.Thread(target=print, args=("a thread is waited for",)).start()
raise ValueError("so it ended")
"""

    def run(text: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TOLD": "7"}
        return warm_interpreter.run(text, tmp_path, env, unloads=unloads)

    done = run(text)
    assert done.stdout.splitlines() == [
        f"{tmp_path} 7 __main__ True", "a thread is waited for", "what is registered is done",
    ]  # fmt: skip
    assert done.stderr.endswith("ValueError: so it ended\n")
    assert done.returncode == 1
    assert run("import os; os.kill(os.getpid(), 9)").returncode == -9
    assert [run(f"raise SystemExit({code})").returncode for code in ("", 3, "'no'")] == [0, 3, 1]


def test_a_script_without_end_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next script still runs."""
    pytest.importorskip("torch", reason="torch is not installed")
    warm_interpreter.run("", tmp_path, os.environ)
    text = "import os, time; os.fork(); open(str(os.getpid()), 'w').close(); time.sleep(1000)"
    monkeypatch.setattr(warm_interpreter, "patience_s", lambda: 1.0)
    with pytest.raises(subprocess.TimeoutExpired):
        warm_interpreter.run(text, tmp_path, os.environ)
    monkeypatch.undo()
    started = {int(path.name) for path in tmp_path.iterdir()}
    assert len(started) == 2
    wait_for_their_end(started)
    assert warm_interpreter.run("print(7)", tmp_path, os.environ).stdout == "7\n"
