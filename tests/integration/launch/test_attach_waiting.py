"""``dynprof attach`` if the main thread only waits, and other threads work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.errors import LaunchError
from dynprof.launch.attaching import REMOTE_EXEC, reach
from tests.integration.commands import dynprof
from tests.integration.launch.attached import attached, begun
from tests.integration.launch.reaching import needs_reaching
from tests.integration.launch.unprepared import ended, is_stepping

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="attaching needs Linux"),
    pytest.mark.skipif(sys.version_info >= REMOTE_EXEC, reason="Python's own means wait for it"),
]

WORKER = """
import asyncio, os, signal, socket, threading, time
def work():
    time.sleep(0.005)
def serve():
    while not Path("enough").exists():
        work()
    over()
def over():
    pass
worker = threading.Thread(target=serve)
"""
"""A thread that works until a file exists; then it calls ``over``."""
WAITS = {
    "lock": "lock = threading.Lock(); over = lock.release; lock.acquire(); worker.start(); "
    "lock.acquire()",
    "sleep": "signal.signal(signal.SIGUSR1, lambda *_: exec('raise SystemExit'))\n"
    "over = lambda: os.kill(os.getpid(), signal.SIGUSR1)\nworker.start(); time.sleep(3600)",
    "accept": "server = socket.create_server(('127.0.0.1', 0))\n"
    "over = lambda: socket.create_connection(server.getsockname()).close()\n"
    "worker.start(); server.accept()",
    "asyncio": "async def main():\n"
    "    global over\n"
    "    done, loop = asyncio.Event(), asyncio.get_running_loop()\n"
    "    over = lambda: loop.call_soon_threadsafe(done.set)\n"
    "    worker.start()\n"
    "    await done.wait()\n"
    "asyncio.run(main())",
}


@pytest.fixture(autouse=True)
def _is_allowed() -> None:
    needs_reaching()


@pytest.mark.parametrize("waits", WAITS)
def test_a_main_thread_that_waits(tmp_path: Path, waits: str) -> None:
    """A waiting process can be attached, captured and detached, and continues as usual."""
    script = WORKER.replace("    while", "    Path('begun').touch()\n    while")
    script = f"from pathlib import Path\n{script}{WAITS[waits]}\nPath('went_on').touch()\n"
    if waits == "sleep":
        script = script.replace("\nPath('went_on')", "\n# it is interrupted\nPath('never')")
    with begun(tmp_path, script, before="") as process:
        attached(process, "--step-on", ":work")
        is_stepping(tmp_path)
        code, output, errors = dynprof("arm", process.pid, "--active", 3, "--wait")
        assert code == 0, errors
        manifest = load_manifest(Path(output.strip()))
        assert (manifest.complete, manifest.steps.recorded) == (True, 3)
        assert dynprof("detach", process.pid)[0] == 0
        assert not (tmp_path / "went_on").exists()
        assert ended(tmp_path, process) == ""
    assert (tmp_path / "went_on").exists() == (waits != "sleep")


def test_the_place_of_a_main_thread_that_hangs_is_named(tmp_path: Path) -> None:
    """The error names the script's line that called the library function."""
    script = (
        "import threading\ndef hang():\n    threading.Event().wait(600)\nwhile True:\n    hang()\n"
    )
    with begun(tmp_path, script) as process:
        output = attached(process)
        line = script.splitlines().index("    threading.Event().wait(600)") + 1
        assert "its main thread was in wait (" in output
        assert f", called at {tmp_path}/job.py:{line} in hang" in output


def test_the_wait_for_pythons_lock_has_a_timeout(tmp_path: Path) -> None:
    """The main thread is in C with the GIL: a new thread times out and does nothing later."""
    script = """
import ctypes, sys, threading
from pathlib import Path
while True:
    ctypes.PyDLL(None).usleep(4_000_000)
    break
print("dynprof" in sys.modules, threading.active_count())
"""
    with begun(tmp_path, script) as process:
        why = "has not run Python on a new thread, because .* Its main thread waits in the system"
        with pytest.raises(LaunchError, match=why):
            reach(process.pid, {"action": "attach", "directory": "x", "steps": None}, 1.5)
        output, errors = process.communicate()
    assert (process.returncode, output, errors) == (0, "False 1\n", "")


def test_a_main_thread_that_has_ended(tmp_path: Path) -> None:
    """Python starts no more threads then: the error says so, and the other threads continue."""
    script = f"from pathlib import Path\n{WORKER}worker.start()\n"
    script = script.replace("    while", "    Path('begun').touch()\n    while")
    with begun(tmp_path, script, before="") as process:
        code, _, errors = dynprof("attach", process.pid)
        assert code == 4
        assert "its main thread has ended, and only other threads still run" in errors
        assert ended(tmp_path, process) == ""
