"""``dynprof attach`` if the work in the process fails or never answers."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from dynprof.errors import LaunchError
from dynprof.launch.attaching import REMOTE_EXEC, reach
from dynprof.launch.foreign_process import python_functions
from tests.integration import commands
from tests.integration.commands import dynprof
from tests.integration.launch.attached import begun
from tests.integration.launch.reaching import needs_reaching
from tests.integration.launch.unprepared import LOOP, ended, is_stepping, logs

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="attaching needs Linux"),
    pytest.mark.skipif(sys.version_info >= REMOTE_EXEC, reason="Python's own means differ"),
]


@pytest.fixture(autouse=True)
def _is_allowed() -> None:
    needs_reaching()


def test_a_process_without_a_descriptor_left(tmp_path: Path) -> None:
    """No file can be opened there: the error says so, and the training continues."""
    full = """import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
try:
    for _ in range(99):
        os.dup(0)
except OSError:
    os.mkdir("begun")
while"""
    with begun(tmp_path, LOOP.replace("while", full), before="") as process:
        code, _, errors = dynprof("attach", process.pid, "--timeout", 20)
        assert code == 4
        assert (
            f"process {process.pid} could not write its answer: it has no free descriptor" in errors
        )
        assert ended(tmp_path, process) == ""


def test_a_process_that_executes_another_program_during_the_attach(tmp_path: Path) -> None:
    """The command does not wait for an answer that cannot come."""
    script = """
import os, sys, threading
from pathlib import Path
while "dynprof" not in sys.modules:
    pass
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(100)"])
"""
    with begun(tmp_path, script) as process:
        asked = {"action": "attach", "directory": str(tmp_path), "steps": None}
        with pytest.raises(LaunchError, match="has ended, or runs another program"):
            reach(process.pid, asked, 100)


def test_two_commands_at_once(tmp_path: Path) -> None:
    """One of them attaches, and the other one says so; there is one session."""
    with begun(tmp_path, LOOP) as process:
        both = [commands.start("attach", process.pid, "--step-on", ":work") for _ in range(2)]
        said = [each.communicate() for each in both]
        assert sorted(each.returncode for each in both) == [0, 4], said
        is_stepping(tmp_path)
        assert len(logs(tmp_path)) == 1
        assert ended(tmp_path, process) == ""


def test_a_python_that_was_replaced_since_it_began(tmp_path: Path) -> None:
    """Functions are looked up in the file that the process has loaded, not in the new one."""
    python = tmp_path / Path(sys.executable).resolve().name
    shutil.copy(Path(sys.executable).resolve(), python)
    copies = [python]
    maps = Path("/proc/self/maps").read_text()
    if library := re.search(r"/\S*/libpython3\.\S+", maps):
        copies.append(tmp_path / Path(library[0]).name)
        shutil.copy(library[0], copies[-1])
    where = {"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": str(tmp_path)}
    with begun(tmp_path, LOOP, python, **where) as process:
        before = python_functions(process.pid)
        for copy in copies:
            (tmp_path / "new").write_bytes(b"another version")
            (tmp_path / "new").rename(copy)
        try:
            assert python_functions(process.pid) == before
        except LaunchError as error:  # only root may read it
            assert f"{copies[-1]} was replaced or removed since it started" in str(error)
        assert ended(tmp_path, process) == ""
