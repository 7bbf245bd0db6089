"""``dynprof attach`` of processes whose kind or place forbids it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import psutil
import pytest

from dynprof.launch.attaching import REMOTE_EXEC
from tests import processes
from tests.integration.launch.attached import attached, begun, refusal
from tests.integration.launch.reaching import needs_reaching
from tests.integration.launch.unprepared import LOOP, ended
from tests.integration.running import wait_for
from tests.users import MALLORY, as_root

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attaching needs Linux")
OF_ITS_OWN = "unshare", "--map-root-user", "--mount"
"""The start of a command line for a program with its own mounts."""
STATIC = """
#include <unistd.h>
int main(void) { write(1, "there\\n", 6); for (;;) pause(); }
"""


@pytest.fixture(autouse=True)
def _is_allowed() -> None:
    needs_reaching()


def test_a_process_with_its_own_mounts_is_refused(tmp_path: Path) -> None:
    """As for a container, the error says what to do, and nothing is changed."""
    if not shutil.which(OF_ITS_OWN[0]) or processes.run([*OF_ITS_OWN, "true"]).returncode:
        pytest.skip("no process here may have files of its own")
    (tmp_path / "job.py").write_text(LOOP)
    command = [*OF_ITS_OWN, sys.executable, "job.py"]  # exec: the pid is the program's
    with processes.start(command, cwd=tmp_path) as process:
        wait_for("its own files", lambda: has_files_of_its_own(process.pid) or None)
        text = refusal(process.pid)
        assert "runs in a container with its own file system; run dynprof attach in it" in text
        assert ended(tmp_path, process) == ""
    assert not (tmp_path / "prof_config").exists()


def has_files_of_its_own(pid: int) -> bool:
    """Return whether a process has other mounts than this one."""
    return Path(f"/proc/{pid}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()


@as_root
def test_a_directory_that_another_user_made_where_the_process_works(tmp_path: Path) -> None:
    """The error says what to do; a directory of the user is watched."""
    there = tmp_path / "prof_config"
    there.mkdir(mode=0o700)
    MALLORY.own(there)
    with begun(tmp_path, LOOP) as process:
        text = refusal(process.pid)
        assert f"process {process.pid} cannot be watched: " in text
        assert f"{there} is not safe to watch" in text
        assert "belongs to uid 61002" in text
        attached(process, "--config", tmp_path / "own", "--step-on", ":work")
        assert ended(tmp_path, process) == ""
    assert list(there.iterdir()) == []


def test_a_launcher(tmp_path: Path) -> None:
    """The error says that a launcher is not a rank; as a rank it would delay every request."""
    (tmp_path / "torchrun").write_text(LOOP)
    with processes.start([sys.executable, "torchrun"], cwd=tmp_path) as process:
        called = psutil.Process(process.pid).cmdline
        wait_for("its program", lambda: "torchrun" in called() or None)
        text = refusal(process.pid)
        assert f"process {process.pid} is torchrun, which starts ranks and is not one" in text
        assert ended(tmp_path, process) == ""
    assert not (tmp_path / "prof_config").exists()


def test_a_worker_of_a_loader(tmp_path: Path) -> None:
    """The error names the training process, and no option that the command lacks."""
    script = f"""
import multiprocessing, time
from pathlib import Path
def work():
    Path("worker").write_text(str(multiprocessing.current_process().pid))
    time.sleep(600)
worker = multiprocessing.get_context("fork").Process(target=work, daemon=True)
worker.start()
while not Path("worker").exists() or not Path("worker").read_text(): time.sleep(0.01)
{LOOP}"""
    with begun(tmp_path, script, before="def work():\n    time.sleep(0.005)") as process:
        text = refusal(int((tmp_path / "worker").read_text()))
        assert f"; attach to process {process.pid}, which started it" in text
        assert "rank=" not in text
        assert ended(tmp_path, process) == ""


@pytest.mark.skipif(sys.version_info >= REMOTE_EXEC, reason="Python's own means look otherwise")
def test_a_static_build(tmp_path: Path) -> None:
    """A static build has Python's name but no symbols."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    program = tmp_path / f"python3.{sys.version_info[1]}"
    (tmp_path / "program.c").write_text(STATIC)
    build = [str(compiler), "-static", "-o", str(program), str(tmp_path / "program.c")]
    if not compiler or processes.run(build).returncode:
        pytest.skip("no static program can be built here")
    with processes.start([program]) as process:
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        assert "its Python was built without symbol names" in refusal(process.pid)
        assert process.poll() is None


def test_a_process_in_its_exit_functions_is_refused(tmp_path: Path) -> None:
    """The script has ended, and its exit functions run: the process ends as usual."""
    script = "import atexit, threading\nfrom pathlib import Path\n"
    script += "atexit.register(lambda: [*iter(Path('enough').exists, True)])\n"
    script += "atexit.register(Path('begun').touch)\n"
    with begun(tmp_path, script, before="") as process:
        assert "cannot be watched: its main thread has ended" in refusal(process.pid)
        assert ended(tmp_path, process) == ""
    assert not (tmp_path / "prof_config").exists()
