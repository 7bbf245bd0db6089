"""A stopped thread of another process that calls functions at any point."""

from __future__ import annotations

import mmap
import sys

import psutil
import pytest

from dynprof.launch.foreign_process import _addresses, _mapped_files
from dynprof.launch.stopped_thread import StoppedThread, write_memory
from tests import processes
from tests.integration.launch.reaching import needs_reaching
from tests.integration.running import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attaching needs Linux")


def test_registers_of_vectors_are_put_back() -> None:
    """An interrupted computation continues with its numbers, whatever a call did with them."""
    needs_reaching()
    script = "import time; print('there', flush=True); time.sleep(100)"
    with processes.start([sys.executable, "-c", script]) as process:
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        wait_for("its sleep", lambda: psutil.Process(process.pid).status() == "sleeping" or None)
        pid = process.pid
        files = _mapped_files(pid)
        libc = [path for path in files if "/libc" in path]
        functions = _addresses(pid, files, libc, ("mmap", "strtod"))
        with StoppedThread(pid, 10) as thread:
            before = thread._vector_registers()
            rights, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            number = thread.call(functions["mmap"], 0, mmap.PAGESIZE, rights, kind, -1, 0)
            write_memory(pid, number, b"3.25\0")
            thread.call(functions["strtod"], number, 0)
            assert thread._vector_registers() != before
        with StoppedThread(pid, 10) as thread:
            assert thread._vector_registers() == before
